"""The logger for Aim."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import Logger
from core.loggers import to_scalar
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_QUIET = {"system_tracking_interval": None, "capture_terminal_logs": False}
"""Aim's own threads, which would keep workers from being forked."""


class AimLogger(Logger):
    """Hands metrics to the library aim, which writes them into a repository: a folder `.aim`, or a
    server's.

    Options are recorded as the run's `hparams`, and the way in which the last stage ended as its
    `status`. The end of a stage closes the run, so that no thread of the library is left; the next
    value opens it again.

    Args:
        experiment: by which Aim groups runs.
        version: hash of a run to continue; None makes a new one.
        save_dir: holds the repository, and a folder `experiment/version` for what else belongs to
            the run: checkpoints.
        repo: another repository than that of `save_dir`: a folder, or a server as
            `"aim://host:port"`.
        options: go to `aim.Run`, such as `system_tracking_interval=30`.

    Raises:
        ConfigurationError: the package aim is not installed.
    """

    def __init__(
        self,
        experiment: str = "core_logs",
        version: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        *,
        repo: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        require_package("aim", user="AimLogger", install="aim")
        self._experiment_name, self._hash = experiment, version
        self._save_dir = Path(save_dir).expanduser()
        self._repo, self._options = str(repo if repo is not None else self._save_dir), options
        self._run: Any = None

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """Hash of the run, which is made if there is none yet."""
        if self._hash is None:
            self._hash = self.experiment.hash
        return self._hash

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the run and isn't in the repository, such as checkpoints. It
        may not exist yet.
        """
        return str(self._save_dir / self._experiment_name / self.version)

    @property
    def experiment(self) -> Any:
        """The run (`aim.Run`), for images, texts, distributions and the rest. It is opened at the
        first use.
        """
        if self._run is None:
            import aim

            if "://" not in self._repo:
                Path(self._repo).mkdir(parents=True, exist_ok=True)
            options = {**_QUIET, **self._options}
            self._run = aim.Run(
                self._hash, repo=self._repo, experiment=self._experiment_name, **options
            )
            self._hash = self._run.hash
        return self._run

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        for name, value in metrics.items():
            self.experiment.track(to_scalar(name, value), name=name, step=step)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options, as `hparams`; what Aim can't hold becomes text."""
        options = vars(params) if isinstance(params, Namespace) else params
        for name, value in options.items():
            self.experiment["hparams", str(name)] = _held(value)

    def save(self) -> None:
        """Close the run, which writes what the library keeps back."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def finalize(self, status: str) -> None:
        """The stage is over: record how, and close the run."""
        if self._hash is not None:
            self.experiment["status"] = status
            self.save()

    def state_dict(self) -> dict[str, Any]:
        """The run's hash."""
        return {"version": self._hash}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that run."""
        self._hash = state["version"]

    def __getstate__(self) -> dict[str, Any]:
        # A run holds files and locks; the copy opens it again by its hash.
        return {**self.__dict__, "_run": None}


def _held(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _held(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_held(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
