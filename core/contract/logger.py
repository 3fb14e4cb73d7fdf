"""The Logger contract: writes the metrics and hyperparameters of a run."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Logger(abc.ABC):
    """Receives metrics and hyperparameters. Meant to be subclassed; `log_metrics` is all that is
    needed.

    A logger opens its files or connections at the first call, not when it is made, so that it can
    be pickled and costs nothing where it isn't used. One that is chosen by its alias,
    `Trainer(logger="acme")`, is made without arguments; if it takes `save_dir`, it gets the
    `default_root_dir`. The call sequence, on rank 0 only:

    1. `name`, `version` and `log_dir`, when a stage begins: checkpoints go to the folder of the
       run.
    2. `log_hyperparams(params)`, once a run, before the first metrics.
    3. `log_metrics(metrics, step)`, every `log_every_n_steps` steps, and at the end of an epoch.
    4. `save()`, when a Fabric ends: it has no stages, and calls nothing else at its end.
    5. `finalize(status)`, when a stage of a Trainer is over, also after an error. Another stage may
       go on from 1.
    6. `state_dict()` in the rank that a launcher has made, when the stage is over, and
       `load_state_dict(state)` in the main process: its logger then goes on with the same run.
    """

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return type(self).__name__

    @property
    def version(self) -> str | int | None:
        """The version of the experiment, which distinguishes its runs."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of this run, if the logger writes to a local one. Checkpoints go there by
        default.
        """
        return None

    @abc.abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars.

        Args:
            metrics: value by name.
            step: number of optimizer steps so far.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record the options of the run, once."""

    def save(self) -> None:
        """Flush what is buffered."""

    def finalize(self, status: str) -> None:
        """A stage is over, also one that wrote nothing. `status`: `"success"`, `"failed"` or
        `"interrupted"`.

        Everything must have arrived afterwards. Another stage may follow and go on with the same
        run.
        """

    def state_dict(self) -> dict[str, Any]:
        """The identity of this run, such as its version. A worker process sends it to the process
        that started it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run that `state_dict` describes."""
