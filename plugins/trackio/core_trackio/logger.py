"""The logger for Trackio."""

from __future__ import annotations

import secrets
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.loggers import to_scalar
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_QUIET = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
"""No dashboard in a notebook, and no threads that measure the machine, unless they are asked
for.
"""


class TrackioLogger(Logger):
    """Hands metrics to the library trackio, which writes them into a local database, or sends them
    elsewhere.

    The database is in Trackio's own folder, which the environment's TRACKIO_DIR chooses;
    `trackio show` shows it. The end of a stage finishes the run, so that all is written and no
    thread is left; the next value resumes it.

    Trackio has one run at a time in a process: beginning this one finishes another that is open.
    Pass your own as `experiment` to log into it. Options are written with the first values: a run
    without values has none.

    Args:
        project: in which Trackio lists the run.
        name: of the run; one that is there already is continued. None makes up a new one.
        save_dir: holds a folder `project/name` for what belongs to the run, such as checkpoints.
        experiment: a run that you have opened yourself. It is used, and left open.
        options: go to `trackio.init`, such as `space_id`, `group`.

    Raises:
        ConfigurationError: the package trackio is not installed.
    """

    def __init__(
        self,
        project: str = "core_logs",
        name: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        *,
        experiment: Any = None,
        **options: Any,
    ) -> None:
        require_package("trackio", user="TrackioLogger", install="trackio")
        if experiment is not None and not hasattr(experiment, "log"):
            raise ConfigurationError(
                f"experiment={experiment!r}: expected a run, as trackio.init returns it."
            )
        self._project = project if experiment is None else experiment.project
        self._run_name = name if experiment is None else experiment.name
        self._save_dir, self._options = Path(save_dir).expanduser(), options
        self._run, self._is_own = experiment, experiment is None
        self._params: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """Name of the run."""
        if self._run_name is None:
            self._run_name = f"run-{secrets.token_hex(4)}"
        return self._run_name

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the run and isn't in the database, such as checkpoints. It may
        not exist yet.
        """
        return str(self._save_dir / self._project / self.version)

    @property
    def experiment(self) -> Any:
        """The run, for images, tables, alerts and the rest. It is begun, or resumed, at the first
        use.
        """
        if self._run is None:
            import trackio

            self._run = trackio.init(
                self._project,
                self.version,
                resume="allow",
                config=self._params,
                **{**_QUIET, **self._options},
            )
        return self._run

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars; a thread of the library writes them twice a second.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        self.experiment.log(
            {name: to_scalar(name, value) for name, value in metrics.items()}, step=step
        )

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options as the run's configuration, with the next values."""
        options = vars(params) if isinstance(params, Namespace) else params
        self._params.update(options)
        if self._is_own:
            self.save()
        else:
            self._run.config.update(options)

    def save(self) -> None:
        """Finish the run, which writes what the library keeps back; the next value resumes it."""
        if self._run is not None and self._is_own:
            self._run.finish()
            self._run = None

    def finalize(self, status: str) -> None:
        """The stage is over: write everything."""
        self.save()

    def state_dict(self) -> dict[str, Any]:
        """The run's name."""
        return {"version": self._run_name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that run."""
        self._run_name = state["version"]

    def __getstate__(self) -> dict[str, Any]:
        # A run belongs to its process; the copy resumes it by its name.
        return {**self.__dict__, "_run": None, "_is_own": True}
