"""Objects in checkpoints whose classes somebody has allowed: torch's safe unpickler makes them
again, and nothing else.

Entry points of the group `core_lightning.allowed_objects` allow a class, or a module for the
classes that it defines. `allowed.txt` lists those of common libraries alike, and
`torch.serialization.add_safe_globals` allows further ones.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import import_module, metadata
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.serialization import get_safe_globals, get_unsafe_globals_in_checkpoint

from core import CheckpointError
from core.checkpoint.building_blocks import unpickle

GROUP = "core_lightning.allowed_objects"
KEY = "allowed_objects"  # of what the module's hook adds to a checkpoint
_ARRAY_BEFORE = "core_lightning.allowed_objects.make_array"  # in older files
WAY = "torch.serialization.add_safe_globals allows a class, and so do entry points of its package."


class RefusedClassError(CheckpointError):
    """An object is of a class that nobody has allowed.

    Attributes:
        named: the classes.
    """

    def __init__(self, named: str) -> None:
        self.named = named
        super().__init__(f"Objects of {named} aren't allowed in checkpoints. {WAY}")


def to_bytes(value: Any) -> bytes:
    """The objects, as they are kept.

    Raises:
        RefusedClassError: one is of a class that isn't allowed, which is named, or can't be made
            again.
    """
    file = io.BytesIO()
    try:
        torch.save(value, file, pickle_module=SimpleNamespace(__name__=__name__, Pickler=_Pickler))
        from_bytes(file.getvalue())
    except RefusedClassError:
        raise
    except Exception as error:  # of any class in it
        raise RefusedClassError(f"{type(value).__name__} ({error!r:.200})") from error
    return file.getvalue()


def from_bytes(content: bytes) -> Any:
    """The objects that `to_bytes` has kept.

    Raises:
        RefusedClassError: they are of classes that aren't allowed here, which are named.
    """
    file = io.BytesIO(content)
    found = {name: _find(name) for name in sorted(get_unsafe_globals_in_checkpoint(file))}
    refused = [name for name, each in found.items() if each is None]
    if refused:
        raise RefusedClassError(", ".join(refused))
    file.seek(0)
    return unpickle(file, [(each, name) for name, each in found.items()])


def sorted_out(objects: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The objects that can be kept, by name; and of the others the names, each with its classes."""
    kept, left_out = {}, []
    for name, value in objects.items():
        classes = refusal(value)
        if classes is None:
            kept[name] = value
        else:
            left_out.append(f"{name!r} (of {classes})")
    return kept, left_out


def refusal(value: Any) -> str | None:
    """The classes for which an object can't be kept; None if it can."""
    try:
        to_bytes(value)
    except RefusedClassError as error:
        return error.named
    return None


@cache
def _allowed() -> frozenset[str]:
    own = files(__package__).joinpath("allowed.txt").read_text(encoding="utf-8").split()
    return frozenset(own).union(each.value for each in metadata.entry_points(group=GROUP))


def _find(name: str) -> Any:
    """The class, or another object that is allowed by its own name; None if it isn't."""
    if name == _ARRAY_BEFORE:
        return make_array
    module, _, attribute = name.rpartition(".")
    is_allowed, is_in_module = f"{module}:{attribute}" in _allowed(), module in _allowed()
    if not is_allowed and not is_in_module:
        return None
    found = getattr(import_module(module), attribute, None)
    if is_allowed or (isinstance(found, type) and found.__module__ == module):
        return found
    return None


def _check(kind: type) -> None:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _find(name) is None and kind not in get_safe_globals():
        raise RefusedClassError(name)


class _Pickler(pickle.Pickler):
    """Has arrays in a form of its own: NumPy's unpickling would trust the bytes of a file."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module):  # before its tensors are written
            _check(type(value))
        if isinstance(value, Enum):  # Python 3.11.2 asks for getattr
            return type(value), (value.value,)
        is_scalar = isinstance(value, np.generic)
        if (not is_scalar and type(value) is not np.ndarray) or value.dtype.kind == "V":
            return NotImplemented
        array = np.asarray(value)
        order: Literal["F", "C"] = "C"
        if array.flags.fnc:
            order = "F"
        content: Any = array.tobytes(order)
        if array.dtype == object:
            content = array.ravel(order).tolist()
        return make_array, (array.dtype.str, array.shape, content, order, is_scalar)


def make_array(code: str, shape: tuple[int, ...], content: Any, order: Any, is_scalar: bool) -> Any:
    """An array, or a scalar, of the items of a list or of bytes."""
    if isinstance(content, list):
        array = np.empty(len(content), object)
        for index, item in enumerate(content):
            array[index] = item
    else:
        array = np.frombuffer(content, code).copy()
    array = array.reshape(shape, order=order)
    if is_scalar:
        return array[()]
    return array
