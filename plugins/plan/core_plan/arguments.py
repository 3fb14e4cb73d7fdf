"""Other arguments for the Trainer or Fabric of a program that doesn't know of it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def replace_arguments(
    cls: type, new: Mapping[str, Any], made: Callable[[Any, Mapping[str, Any]], None] | None = None
) -> Callable[[], None]:
    """Give each object of `cls` that is made from now on other arguments than its caller's.

    Args:
        cls: `core.Trainer` or `core.Fabric`. Subclasses are served by their base.
        new: by name. A value that can be called gets the caller's argument, or the default, and
            returns the other one.
        made: called with each object, and with the arguments that its caller gave.

    Returns:
        A function that undoes it.
    """
    own = cls.__init__  # type: ignore[misc]  # a subclass has another, which calls it
    signature = inspect.signature(own)

    @functools.wraps(own)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        given = dict(bound.arguments)
        bound.apply_defaults()
        for name, value in new.items():
            bound.arguments[name] = value(bound.arguments[name]) if callable(value) else value
        own(*bound.args, **bound.kwargs)
        if made is not None:
            made(self, given)

    cls.__init__ = init  # type: ignore[misc]  # of this process alone, which is made for the purpose

    def undo() -> None:
        cls.__init__ = own  # type: ignore[misc]

    return undo
