"""The logger for Weights & Biases."""

from __future__ import annotations

import multiprocessing
import secrets
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

STEP = "trainer/global_step"
"""The metric of the charts' horizontal axis: W&B's own step counts calls."""

_EXIT_CODES = {"failed": 1, "interrupted": 130}
_opened: set[str] = set()


class WandbLogger(Logger):
    """Hands metrics to the library wandb, which sends them in a process of its own.

    A run that you have opened already, as a sweep's function does, is used. The end of a stage
    leaves the run open, so that `test` and calls of yours go on in it: W&B ends it with the
    process, or `logger.experiment.finish()` does. A stage that fails ends it as failed.

    Args:
        project: in which W&B lists the run.
        name: of the run, for people; None lets W&B invent one.
        version: id of the run; one that is there already is continued. None makes a new one.
        save_dir: holds W&B's own files, and a folder `project/version` for what else belongs to the
            run: checkpoints.
        offline: send nothing; `wandb sync` does it later.
        experiment: the run, if you have opened it yourself and have several.
        options: go to `wandb.init`, such as `entity`, `group`, `tags`.

    Raises:
        ConfigurationError: the package wandb is not installed.
    """

    def __init__(
        self,
        project: str = "core_logs",
        name: str | None = None,
        version: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        *,
        offline: bool = False,
        experiment: Any = None,
        **options: Any,
    ) -> None:
        require_package("wandb", user="WandbLogger", install="wandb")
        if experiment is not None and not hasattr(experiment, "define_metric"):
            raise ConfigurationError(
                f"experiment={experiment!r}: expected a run, as wandb.init returns it."
            )
        self._project, self._run_name, self._offline = project, name, offline
        self._id = experiment.id if experiment is not None else version
        self._save_dir, self._options = Path(save_dir).expanduser(), options
        self._run, self._is_own = experiment, experiment is None

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """Id of the run."""
        if self._id is None:
            adopted = _opened_by_user()
            self._id = adopted.id if adopted is not None else secrets.token_hex(4)
        return self._id

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the run and isn't sent, such as checkpoints. It may not exist
        yet.
        """
        return str(self._save_dir / self._project / self.version)

    @property
    def experiment(self) -> Any:
        """The run (`wandb.Run`), for images, tables, artifacts and the rest. It is opened at the
        first use.
        """
        if self._run is None:
            self._run = self._open()
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP, step_sync=True)
        return self._run

    def _open(self) -> Any:
        import wandb

        adopted = _opened_by_user()
        if adopted is not None and adopted.id == self.version:
            self._is_own = False
            return adopted
        self._save_dir.mkdir(parents=True, exist_ok=True)
        options = {
            "mode": "offline" if self._offline else None,
            # wandb.log and its neighbors act on the first run; those that come later stand beside
            # it.
            "reinit": None if wandb.run is None else "create_new",
            "resume": "allow",
            **self._options,
        }
        run = wandb.init(
            project=self._project,
            name=self._run_name,
            id=self.version,
            dir=str(self._save_dir),
            **options,
        )
        _opened.add(run.id)
        return run

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars; the library sends them later."""
        self.experiment.log({**metrics, STEP: step})

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options as the run's configuration."""
        options = vars(params) if isinstance(params, Namespace) else params
        self.experiment.config.update(dict(options), allow_val_change=True)

    def finalize(self, status: str) -> None:
        """The stage is over. Ends the run if it failed, or if this process won't, being a worker
        that was spawned.
        """
        if self._run is None or not self._is_own:
            return
        exit_code = _EXIT_CODES.get(status)
        if exit_code is not None or multiprocessing.parent_process() is not None:
            self._run.finish(exit_code=exit_code or 0)
            self._run = None

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"version": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that run."""
        self._id = state["version"]

    def __getstate__(self) -> dict[str, Any]:
        # A run belongs to its process; the copy continues it by its id.
        return {**self.__dict__, "_run": None, "_is_own": True}


def _opened_by_user() -> Any:
    import wandb

    run = wandb.run
    return run if run is not None and run.id not in _opened else None
