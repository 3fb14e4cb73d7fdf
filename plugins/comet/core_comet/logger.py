"""The logger for Comet."""

from __future__ import annotations

import multiprocessing
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.loggers import flatten_names, to_scalar
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from argparse import Namespace
    from collections.abc import Mapping

_OURS = {
    "auto_metric_logging": False,
    "auto_param_logging": False,
    "parse_args": False,
    "display_summary_level": 0,
}
"""Settings that leave to core what the library would record or print of its own accord."""

_opened: set[str] = set()


class CometLogger(Logger):
    """Hands metrics to the library comet_ml, which sends them from threads of its own, or keeps
    them to be uploaded.

    An experiment that you have opened already is used, and left open. The end of a stage leaves the
    logger's own one open too, so that `test` and calls of yours go on in it: Comet ends it with the
    process, or `logger.experiment.end()` does. A stage that fails ends it.

    Args:
        project: in which Comet lists the experiment.
        name: of the experiment, for people; None lets Comet invent one.
        version: key of the experiment; one that is there already is continued. None makes a new
            one.
        save_dir: holds the archives of offline experiments, and a folder `project/version` for what
            else belongs to the experiment: checkpoints.
        offline: write an archive into `save_dir`, and send nothing.
        workspace: Comet's; None is the default of your account.
        experiment: the experiment, if you have opened it yourself and have several.
        options: go to `comet_ml.ExperimentConfig`, such as `tags`, `log_code`.

    Raises:
        ConfigurationError: the package comet-ml is not installed.
    """

    def __init__(
        self,
        project: str = "core_logs",
        name: str | None = None,
        version: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        *,
        offline: bool = False,
        workspace: str | None = None,
        experiment: Any = None,
        **options: Any,
    ) -> None:
        require_package("comet_ml", user="CometLogger", install="comet-ml")
        if experiment is not None and not hasattr(experiment, "log_metrics"):
            raise ConfigurationError(
                f"experiment={experiment!r}: expected an experiment, as comet_ml.start returns it."
            )
        self._project, self._title, self._offline, self._workspace = (
            project,
            name,
            offline,
            workspace,
        )
        self._key = experiment.get_key() if experiment is not None else version
        self._save_dir, self._options = Path(save_dir).expanduser(), options
        self._experiment, self._is_own = experiment, experiment is None

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """Key of the experiment."""
        if self._key is None:
            adopted = _opened_by_user()
            self._key = adopted.get_key() if adopted is not None else secrets.token_hex(16)
        return self._key

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the experiment and isn't sent, such as checkpoints. It may not
        exist yet.
        """
        return str(self._save_dir / self._project / self.version)

    @property
    def experiment(self) -> Any:
        """The experiment, for images, audio, assets and the rest. It is opened at the first use."""
        if self._experiment is None:
            self._experiment = self._open()
        return self._experiment

    def _open(self) -> Any:
        import comet_ml

        adopted = _opened_by_user()
        if adopted is not None and adopted.get_key() == self.version:
            self._is_own = False
            return adopted
        self._save_dir.mkdir(parents=True, exist_ok=True)
        config = {
            "name": self._title,
            "offline_directory": str(self._save_dir),
            **_OURS,
            **self._options,
        }
        opened = comet_ml.start(
            online=False if self._offline else None,
            mode="get_or_create",
            project_name=self._project,
            workspace=self._workspace,
            experiment_key=self.version,
            experiment_config=comet_ml.ExperimentConfig(**config),
        )
        _opened.add(self.version)
        return opened

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars; the library sends them later.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        self.experiment.log_metrics(
            {name: to_scalar(name, value) for name, value in metrics.items()}, step=step
        )

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options, nested ones as `model/width`."""
        self.experiment.log_parameters(flatten_names(params))

    def save(self) -> None:
        """Wait until what the library holds is sent or written."""
        if self._experiment is not None:
            self._experiment.flush()

    def finalize(self, status: str) -> None:
        """The stage is over. Ends the experiment if it failed, or if this process won't, being a
        worker.
        """
        if self._experiment is None or not self._is_own:
            return
        self._experiment.log_other("status", status)
        if status != "success" or multiprocessing.parent_process() is not None:
            self._experiment.end()
            self._experiment = None
        else:
            self.save()

    def state_dict(self) -> dict[str, Any]:
        """The experiment's key."""
        return {"version": self._key}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that experiment."""
        self._key = state["version"]

    def __getstate__(self) -> dict[str, Any]:
        # An experiment belongs to its process; the copy continues it by its key.
        return {**self.__dict__, "_experiment": None, "_is_own": True}


def _opened_by_user() -> Any:
    import comet_ml

    running = comet_ml.get_running_experiment()
    return running if running is not None and running.get_key() not in _opened else None
