"""Find the part of an object that doesn't pickle, so that the error can name it."""

from __future__ import annotations

import functools
import io
import pickle
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_MAX_PARTS = 100  # of those that fail: each is pickled


def find_unpicklable(value: object, path: str, pickle_module: ModuleType = pickle) -> tuple[str, Exception] | None:
    """The path to the innermost part that can't be pickled, such as `"strategy._ddp_options['hook']"`, and its error.

    Args:
        value: what to pickle.
        path: how messages call it.
        pickle_module: as `torch.save` takes it.
    """
    if (error := _error_of(value, pickle_module)) is None:
        return None
    return _find(value, path, error, set(), pickle_module) or (path, error)


def _find(
    value: object, path: str, error: Exception, failing: set[int], pickle_module: ModuleType
) -> tuple[str, Exception] | None:
    """The innermost part of what fails; None if that is only in what refers to it, and is found from there."""
    is_innermost = True
    failing.add(id(value))
    for name, part in _parts(value) if len(failing) < _MAX_PARTS else ():
        if id(part) in failing:
            is_innermost = False
        elif (cause := _error_of(part, pickle_module)) is not None:
            is_innermost = False
            if (found := _find(part, path + name, cause, failing, pickle_module)) is not None:
                return found
    return (path, error) if is_innermost else None


def _error_of(value: object, pickle_module: ModuleType) -> Exception | None:
    import torch

    try:
        torch.save(value, _Discard(), pickle_module=pickle_module)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
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


def _attributes(value: object) -> dict[str, object]:
    try:
        state = value.__getstate__()  # what a class leaves out isn't to blame
    except Exception:
        return {}
    parts = state if isinstance(state, tuple) else (state,)  # those of a `__dict__`, those of slots
    return {str(name): item for part in parts if isinstance(part, dict) for name, item in part.items()}


class _Discard(io.BytesIO):
    """A file that discards its content, so that the check of a large model needs no memory."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes
