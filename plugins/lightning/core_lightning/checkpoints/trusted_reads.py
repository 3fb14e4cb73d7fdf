"""Reads of a checkpoint whose writer is known: the objects in it are unpickled, which executes what
it says.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from core import CheckpointError, PathLike
from core.checkpoint import load_checkpoint
from core_lightning.checkpoints.allowed_objects import KEY
from core_lightning.checkpoints.objects import found_by, in_section, is_plain
from core_lightning.checkpoints.whole_checkpoint import allowed_in
from core_lightning.utilities.parsing import AttributeDict

TRUSTS: list[bool] = []
"""Not empty where `install(trusted=True)` has said that the user knows who writes this program's
checkpoints.
"""

_HPARAMS = "hyper_parameters"
_load = torch.load


@contextmanager
def objects_for(cls: type[Any], path: PathLike, *, is_trusted: bool) -> Iterator[dict[str, Any]]:
    """A context in which modules of a class find what their `on_save_checkpoint` had added to a
    checkpoint.

    It gives hyperparameters, as arguments of `__init__`, and nobody hears that objects are left
    out. Where the file isn't trusted, there are none but those of allowed classes.
    """
    if not is_trusted:
        yield _taken(cls, _allowed_hparams(path))
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* holds objects of other classes", UserWarning)
        hparams, of_hook = _unpickle(path)
        with found_by(cls, of_hook):
            yield _taken(cls, hparams)


def _unpickle(path: PathLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """The hyperparameters that `PickledObjects` has kept, or a program at their places; and what
    the hook has added.
    """
    state = load_checkpoint(path)
    try:
        hparams, of_hook = in_section(state.get("callbacks", {}))
        of_hook = {**allowed_in(state.get("module_section", {})), **of_hook}
        hparams = {**of_hook.get(_HPARAMS, {}), **hparams}
        is_torchs = "lightning" in state.get("format", {}) or zipfile.is_zipfile(path)
        saved = {}
        if is_torchs:
            saved = _load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise CheckpointError(
            f"The objects in {str(path)!r} can't be unpickled: {error!r}."
        ) from error
    placed = {name: value for name, value in saved.get(_HPARAMS, {}).items() if not is_plain(value)}
    hparams |= placed
    of_hook |= {
        name: value for name, value in saved.items() if name != _HPARAMS and not is_plain(value)
    }
    of_hook[_HPARAMS] = {**of_hook.get(_HPARAMS, {}), **placed}
    return _as_arguments(hparams, state), of_hook


def _allowed_hparams(path: PathLike) -> dict[str, Any]:
    """The hyperparameters of allowed classes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            structure = next(name for name in file.namelist() if name.endswith("data.pkl"))
            if KEY.encode() not in file.read(structure):  # nothing is read twice
                return {}
    state = load_checkpoint(path)
    return _as_arguments(allowed_in(state.get("module_section", {})).get(_HPARAMS, {}), state)


def _as_arguments(hparams: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters, or the one argument that is all of them."""
    argument = state.get("hyper_parameters_argument")
    if hparams and argument:
        return {argument: AttributeDict({**state[_HPARAMS], **hparams})}
    return hparams


def _taken(cls: type[Any], hparams: dict[str, Any]) -> dict[str, Any]:
    """Those that `__init__` takes, as of hyperparameters that are plain."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return hparams
    return {name: value for name, value in hparams.items() if name in parameters}


@contextmanager
def as_path(file: Any) -> Iterator[PathLike]:
    """A path to what a program has given, which may be an open file: that one is copied, and the
    copy removed.
    """
    if not hasattr(file, "read"):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "copy.ckpt")
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        yield path


def trust_checkpoints() -> None:
    """Trust all that this process reads, and make its `torch.load(path, weights_only=False)` find
    objects where Lightning has them.

    Programs that read their checkpoints by themselves ask so. Any other read stays as it is.
    """
    TRUSTS.append(True)
    torch.load = _load_with_objects


@functools.wraps(_load)
def _load_with_objects(*args: Any, **options: Any) -> Any:
    loaded = _load(*args, **options)
    if options.get("weights_only") is False and isinstance(loaded, dict):
        return _with_objects(loaded)
    return loaded


def _with_objects(loaded: dict[str, Any]) -> dict[str, Any]:
    """The content of a file, with what `PickledObjects` has kept of it under Lightning's keys."""
    own = loaded.get("core")
    if not isinstance(own, dict) or "format" not in own:
        return loaded
    hparams, of_hook = in_section(own.get("callbacks", {}))
    found = {**of_hook, **loaded}
    # what a program has put there itself counts most
    hparams |= loaded.get(_HPARAMS, {})
    if hparams:
        found[_HPARAMS] = hparams
    return found
