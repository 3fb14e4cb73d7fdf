"""Hyperparameters that checkpoints lack, since they are objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core import Callback
from core_lightning.checkpoints.allowed_objects import WAY, sorted_out
from core_lightning.checkpoints.objects import PickledObjects, is_plain
from core_lightning.decisions.differences import NAMES_PAGE, note


def note_objects(module: Any, callbacks: Iterable[Callback]) -> None:
    """Rank 0. Warn, once, of hyperparameters that checkpoints of a module will lack."""
    if any(isinstance(callback, PickledObjects) for callback in callbacks):
        return
    _, left_out = sorted_out(objects_among(getattr(module, "hparams", {})))
    if left_out:
        named = ", ".join(sorted(left_out))
        note(
            f"The hyperparameters {named} of {type(module).__name__} are objects, or "
            "hold some, and are left out of checkpoints: a program that looks for them there gets "
            f"a KeyError. Nothing else that is read is executed. {WAY} `core run "
            "--lightning-trusted`, or core_lightning.install(trusted=True), says that you know who "
            "has written them: all are kept, and unpickled where they are read.",
            page=NAMES_PAGE,
            stacklevel=3,
        )


def objects_among(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a checkpoint hasn't by itself, by name."""
    return {name: value for name, value in hparams.items() if not is_kept(value)}


def is_kept(value: Any) -> bool:
    """True if a checkpoint has it: mappings and sequences of any class are dicts and lists
    there.
    """
    if isinstance(value, Mapping):
        return all(map(is_kept, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return all(map(is_kept, value))
    return is_plain(value)
