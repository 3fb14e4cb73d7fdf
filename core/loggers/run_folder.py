"""The folder of one run: `save_dir/name/version_3`."""

from __future__ import annotations

import contextlib
import json
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.contract.errors import ConfigurationError
from core.contract.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PREFIX = "version_"


class RunFolderLogger(Logger):
    """A logger that writes to a local folder of its own for each run. Meant to be subclassed.

    The folder is made when something is first written, or its name is asked for. Two runs that
    begin at once get two: making a folder succeeds for one of them only.

    Args:
        save_dir: holds the experiments.
        name: of the experiment, a folder in `save_dir`; empty for none.
        version: of this run: a number, or a name of its own for the folder; by default the next
            number that is free. A version that is there already is continued.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str = "core_logs",
        version: int | str | None = None,
    ) -> None:
        self._save_dir = Path(save_dir).expanduser()
        self._name = name
        self._version = self._given_version = version
        self._has_made = False

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._name

    @property
    def version(self) -> int | str:
        """Number or name of this run."""
        self.folder()
        assert self._version is not None
        return self._version

    @property
    def save_dir(self) -> str:
        """The folder of all experiments."""
        return str(self._save_dir)

    @property
    def root_dir(self) -> str:
        """The folder of this experiment."""
        return str(self._save_dir / self._name)

    @property
    def log_dir(self) -> str:
        """Folder of this run."""
        return str(self.folder())

    def folder(self) -> Path:
        """The folder of this run, which exists.

        Raises:
            ConfigurationError: it can't be made.
        """
        experiment = self._save_dir / self._name
        with self.writing():
            if self._version is None:
                taken = [path.name.removeprefix(_PREFIX) for path in experiment.glob(f"{_PREFIX}*")]
                # The highest and not the first gap, so that runs are in order. Another process may
                # claim it first: then the next.
                number = max((int(text) for text in taken if text.isdecimal()), default=-1)
                while self._version is None:
                    number += 1
                    with contextlib.suppress(FileExistsError):
                        (experiment / f"{_PREFIX}{number}").mkdir(parents=True)
                        self._version, self._has_made = number, True
            folder = experiment / f"{_PREFIX}{self._version}"
            if isinstance(self._version, str):
                folder = experiment / self._version
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                self._has_made = True
        return folder

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which this logger writes to its folder.

        Raises:
            ConfigurationError: it can't; the disk may be full.
        """
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"{type(self).__name__} can't write to {self.root_dir!r}: {error.strerror}. "
                "Expected a save_dir with room that this process may write to."
            ) from error

    def finalize(self, status: str) -> None:
        """Remove the folder if the run has failed before anything was written. A later call makes
        it again.
        """
        if status != "success":
            self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Remove the folder if this logger has made it, and nothing was written to it. A later call
        makes it again.
        """
        if not self._has_made:
            return
        folder = self.folder()
        with contextlib.suppress(OSError):  # something is in it
            folder.rmdir()
            # The number is free for others from here on.
            self._version, self._has_made = self._given_version, False
            if self._name:
                folder.parent.rmdir()

    def state_dict(self) -> dict[str, Any]:
        """Number or name of this run, None if it has none yet."""
        return {"version": self._version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that run."""
        self._version = self._given_version = state["version"]

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write the options of the run to `hparams.json`; what JSON doesn't know is written as its
        `str`.
        """
        if isinstance(params, Namespace):
            params = vars(params)
        text = json.dumps(dict(params), indent=2, default=str, skipkeys=True)
        with self.writing():
            (self.folder() / "hparams.json").write_text(text + "\n", encoding="utf-8")


def refuse_shared_folders(loggers: Sequence[Logger]) -> None:
    """Refuse loggers of one kind that would write to the same files. No folder is made.

    Raises:
        ConfigurationError: two have the same folder.
    """
    seen: set[tuple[type, str, object]] = set()
    for logger in loggers:
        if not isinstance(logger, RunFolderLogger):
            continue
        version = folder = logger.state_dict().get("version")
        if version is None:  # each gets a folder of its own, unless it is one logger, given twice
            folder = id(logger)
        key = (type(logger), os.path.abspath(logger.root_dir), folder)
        if key in seen:
            raise ConfigurationError(
                f"Two loggers are {type(logger).__name__}({logger.save_dir!r}, {logger.name!r}, "
                f"{version!r}), and would write everything twice. Leave one out, or give them "
                "folders of their own."
            )
        seen.add(key)


def to_scalar(name: str, value: Any) -> float:
    """Convert a metric to a float.

    Raises:
        ConfigurationError: it isn't one number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ConfigurationError(
            f"The metric {name!r} is a {type(value).__name__}{shape}. Expected one number: log its "
            "mean, or each part under a name of its own."
        ) from error


def flatten_names(params: Mapping[str, object] | Namespace, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: `{"model": {"width": 8}}` becomes `{"model/width": 8}`. An empty
    mapping stays.
    """
    if isinstance(params, Namespace):
        params = vars(params)
    flat: dict[str, object] = {}
    for name, value in params.items():
        below: dict[str, object] = {}
        if isinstance(value, Mapping | Namespace):
            below = flatten_names(value, f"{prefix}{name}/")
        flat |= below or {f"{prefix}{name}": value}
    return flat
