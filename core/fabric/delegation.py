"""Wrappers that are of a class of torch, and leave all its methods to the object that they wrap."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=type)


def delegates_to(attribute: str, base: type) -> Callable[[T], T]:
    """Class decorator: public methods of `base` that the class doesn't define run on
    `self.<attribute>`.

    So the wrapped object's class decides what they do, also where it overrides them. What returns
    the wrapped object itself, as `module.train()`, returns the wrapper.
    """

    def decorate(cls: T) -> T:
        for name, method in vars(base).items():
            if inspect.isfunction(method) and not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, _delegate(name, method, attribute))
        return cls

    return decorate


def _delegate(name: str, method: Callable[..., object], attribute: str) -> Callable[..., object]:
    @functools.wraps(method)
    def delegated(self: object, *args: object, **kwargs: object) -> object:
        wrapped = vars(self)[attribute]
        result = getattr(wrapped, name)(*args, **kwargs)
        if result is wrapped:
            return self
        return result

    return delegated
