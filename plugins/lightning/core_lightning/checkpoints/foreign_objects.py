"""Objects of other programs' classes in a torch file: stood in for while it is read, and left out.

Nothing of such a class is imported or called. torch's safe unpickler makes the stand-ins, as it
makes nothing else than what was named to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Set
from typing import Any, BinaryIO

from torch.serialization import get_unsafe_globals_in_checkpoint

from core.checkpoint.building_blocks import unpickle
from core.text import printable

_DICTS = ("AttributeDict", "Hyperparameters", "defaultdict")
"""Classes of dicts whose content is worth reading, by name: torch's unpickler fills nothing but
plain dicts.
"""
_LEFT_OUT = object()


class _StandIn:
    """Stands for an object, or for a function or class itself."""

    def __init__(self, *_: Any) -> None:
        """Ignore what the object was made of."""

    def __setstate__(self, state: Any) -> None:
        """Ignore what the object held."""


class _PlainDict:
    """Stands for a class of dicts: makes plain ones."""

    def __new__(cls, *_: Any) -> Any:  # makes something else
        return {}


def read(file: BinaryIO, path: str, unread: Set[str]) -> dict[str, Any] | None:
    """The content of a file, without objects of other classes, which a warning names; None if it
    can't be read so.

    Objects below the keys `unread`, which nobody looks at, are no warning.
    """
    try:
        loaded = unpickle(file, _stand_ins(file))
    except (MemoryError, OSError, Warning):
        raise
    except Exception:
        return None
    if not isinstance(loaded, dict):
        return None
    left: dict[str, str] = {}
    content = _copy_dict(
        {key: value for key, value in loaded.items() if key not in unread}, "", left
    )
    if left:
        named = printable(", ".join(f"{place} ({kind})" for place, kind in left.items()))
        warnings.warn(
            f"{path!r} was written by PyTorch Lightning and holds objects of other classes, which "
            f"are left out, since nothing in a file is executed: {named}. Read without them: "
            f"{printable(', '.join(content))}.",
            stacklevel=2,
        )
    return content


def _stand_ins(file: BinaryIO) -> list[tuple[Any, str]]:
    """The stand-ins, by name, of all classes and functions that torch's safe unpickler refuses."""
    file.seek(0)
    names = get_unsafe_globals_in_checkpoint(file)
    file.seek(0)
    return [
        (_PlainDict if name.rpartition(".")[2] in _DICTS else type(name, (_StandIn,), {}), name)
        for name in names
    ]


def _copy(value: Any, path: str, left: dict[str, str]) -> Any:
    """A copy of what was read, without stand-ins: their paths, and the names of their classes, are
    added to `left`.

    A list that holds one goes as a whole.
    """
    # Of a class or a function itself, the stand-in is there, and not an instance of it.
    kind = type(value)
    if kind is type:
        kind = value
    if issubclass(kind, _StandIn):
        left[path] = kind.__name__
        return _LEFT_OUT
    if isinstance(value, dict):
        return _copy_dict(value, path, left)
    if isinstance(value, list | tuple | set):
        items = [_copy(item, f"{path}[{index}]", left) for index, item in enumerate(value)]
        return _LEFT_OUT if any(item is _LEFT_OUT for item in items) else type(value)(items)
    return value


def _copy_dict(value: dict[Any, Any], path: str, left: dict[str, str]) -> dict[Any, Any]:
    copied = value.copy()  # keeps the class, and with it the order
    for key, item in value.items():
        inner = f"{path}[{key!r}]" if path else str(key)
        copied[key] = _copy(item, inner, left)
        if copied[key] is _LEFT_OUT or _copy(key, inner, left) is _LEFT_OUT:
            del copied[key]
    return copied
