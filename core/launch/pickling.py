"""Find the part of an object that doesn't pickle, so that the error can name it."""

from __future__ import annotations

import functools
import io
import pickle
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_DEPTH = 12


def find_unpicklable(value: Any, path: str, pickle_module: Any = pickle) -> tuple[str, Exception] | None:
    """The path to the innermost part that can't be pickled, such as `"strategy._ddp_options['hook']"`, and its error.

    Args:
        value: what to pickle.
        path: how messages call it.
        pickle_module: as `torch.save` takes it.
    """
    return _find(value, path, set(), 0, pickle_module)


def _find(value: Any, path: str, seen: set[int], depth: int, pickle_module: Any) -> tuple[str, Exception] | None:
    if (error := _error_of(value, pickle_module)) is None:
        return None
    seen.add(id(value))
    for name, part in _parts(value) if depth < _MAX_DEPTH else ():
        if id(part) not in seen:
            found = _find(part, path + name, seen, depth + 1, pickle_module)
            if found is not None:
                return found
    return path, error


def _error_of(value: Any, pickle_module: Any) -> Exception | None:
    import torch

    try:
        torch.save(value, _Discard(), pickle_module=pickle_module)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif not isinstance(value, types.FunctionType | type):
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if isinstance(name, str)]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


class _Discard(io.BytesIO):
    """A file that discards its content, so that the check of a large model needs no memory."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes
