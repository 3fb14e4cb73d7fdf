"""Where checkpoints are written: folder, names of files, and their versions."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, did_you_mean
from core_training.hooks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from core.contract import PathLike
    from core_training.callbacks.checkpoints.top_k import TopKCheckpoints
    from core_training.views.trainer_views import TrainerViews

_FIELD = re.compile(r"\{([^{}:]*):?([^{}]*)\}")


class CheckpointPaths(Callback):
    """The part of `ModelCheckpoint` that names files.

    Attributes:
        dirpath: the folder or URL.
        last_model_path: what `save_last` wrote.
        save_top_k: number of the best to keep.
    """

    last_model_path: str
    save_top_k: int
    _kept: TopKCheckpoints

    CHECKPOINT_NAME_LAST = "last"
    """Filename, or pattern, of what `save_last` writes."""
    CHECKPOINT_JOIN_CHAR = "-"
    """Stands between the parts of a name that this class makes: epoch, step, and version."""
    CHECKPOINT_EQUALS_CHAR = "="
    """Stands between the name of a value and the value."""
    FILE_EXTENSION = ".ckpt"
    """Ends every name."""
    STARTING_VERSION = 1
    """Number of the second checkpoint of one name, as in `last-v1.ckpt`."""

    def __init__(
        self, dirpath: PathLike | None, filename: str | None, inserts_names: bool, counts: bool
    ) -> None:
        """Create the callback.

        Args:
            dirpath: a folder or URL.
            filename: a pattern.
            inserts_names: `auto_insert_metric_name` of `ModelCheckpoint`.
            counts: `enable_version_counter` of `ModelCheckpoint`.
        """
        self._given_dirpath = None
        if dirpath is not None:
            self._given_dirpath = os.path.expanduser(dirpath)
        self.dirpath = self._given_dirpath
        self.filename = filename
        self.auto_insert_metric_name = inserts_names
        self.enable_version_counter = counts

    def check_fit(self, trainer: Any, module: nn.Module) -> None:
        """Refuse to write over the checkpoints of another one.

        Raises:
            ConfigurationError: both have one folder and pattern, and this one doesn't count
                versions.
        """
        if self.enable_version_counter or not self.save_top_k:
            return
        own = self._file()
        for other in _savers(trainer):
            if other is not self and other.save_top_k and other._file() == own:
                raise _replaces_another(own)

    def _file(self) -> str:
        """Where its checkpoints are, before the fields of the name are filled."""
        folder = os.path.abspath(self._given_dirpath or "")
        return os.path.join(folder, self._pattern() + self.FILE_EXTENSION)

    def _path_for(
        self, trainer: TrainerViews, pattern: str, values: dict[str, float], *, own: str
    ) -> str:
        """All ranks. The path of a checkpoint that may take the place of `own`, and of no other
        one's best.
        """
        if self.enable_version_counter:
            return self._free_path(trainer, pattern, values, own=own)
        path = posixpath.join(
            str(self.dirpath), self._format(pattern, values) + self.FILE_EXTENSION
        )
        is_last = pattern == self.CHECKPOINT_NAME_LAST
        for other in _savers(trainer):
            if path != own and path in other._kept.scores and (is_last or other is not self):
                raise _replaces_another(path)
        return path

    def _free_path(
        self, trainer: TrainerViews, pattern: str, values: dict[str, float], *, own: str = ""
    ) -> str:
        """All ranks. The first path of this name and its versions that no other checkpoint has,
        neither in storage nor reserved; `own`, which is replaced, may be used again.
        """
        path = ""
        if trainer.is_global_zero:
            taken = {
                path
                for each in _savers(trainer)
                for path in (*each._kept.scores, each.last_model_path)
            }
            exists = trainer.strategy.checkpoint_io.exists
            for name in self._names(self._format(pattern, values)):
                path = posixpath.join(str(self.dirpath), name)
                if path == own or not (path in taken or exists(path)):
                    break
        return str(trainer.strategy.broadcast(path))

    def _pattern(self) -> str:
        return self.filename or self._default_pattern()

    def _default_pattern(self) -> str:
        return self.CHECKPOINT_JOIN_CHAR.join(("{epoch}", "{step}"))

    def _format(self, pattern: str, values: Mapping[str, float]) -> str:
        """Fill a pattern with values: `{epoch}-{val_loss:.2f}` becomes `epoch=3-val_loss=0.12`.

        Args:
            pattern: fields are names of logged metrics, `epoch` and `step`, each with a format if
                wanted. A `/` in a name becomes `_`: it would make a folder.
            values: number by name.

        Raises:
            ConfigurationError: a name was not logged, or its format doesn't fit a number.
        """

        def insert(field: re.Match[str]) -> str:
            name, form = field.groups()
            if name not in values:
                raise ConfigurationError(
                    f"The checkpoint's filename {pattern!r} has the field {name!r}, which was not "
                    "logged; known are "
                    f"{', '.join(map(repr, sorted(values)))}.{did_you_mean(name, values)} Log it, "
                    "or leave it out."
                )
            value = values[name]
            if name in ("epoch", "step") and "f" not in form:
                value = int(value)
            try:
                text = format(value, form)
            except ValueError as error:
                raise ConfigurationError(
                    f"The checkpoint's filename {pattern!r} formats {name!r} by {form!r}, and "
                    f"{error}. Expected a Python format for numbers, such as '.2f' or '03d'."
                ) from None
            if self.auto_insert_metric_name:
                return f"{name.replace('/', '_')}{self.CHECKPOINT_EQUALS_CHAR}{text}"
            return text

        return _FIELD.sub(insert, pattern)

    def _names(self, name: str) -> Iterator[str]:
        yield name + self.FILE_EXTENSION
        for version in itertools.count(self.STARTING_VERSION):
            yield f"{name}{self.CHECKPOINT_JOIN_CHAR}v{version}{self.FILE_EXTENSION}"


def _savers(trainer: TrainerViews) -> list[CheckpointPaths]:
    return [each for each in trainer.checkpoint_callbacks if isinstance(each, CheckpointPaths)]


def _replaces_another(path: str) -> ConfigurationError:
    """The error for two callbacks with one file."""
    return ConfigurationError(
        f"ModelCheckpoint(enable_version_counter=False) would write {path!r}, where another one, "
        "or save_last, has its own: each would replace what the other keeps. Give each a folder or "
        "filename of its own, or count versions."
    )
