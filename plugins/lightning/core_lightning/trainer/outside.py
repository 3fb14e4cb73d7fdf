"""Arguments and callbacks of a Trainer that come from outside the program."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from importlib import metadata
from typing import Any

from core import Callback

_FACTORIES = "lightning.pytorch.callbacks_factory"


def with_variables(init: Callable[..., None]) -> Callable[..., None]:
    """A Trainer's `__init__`, whose arguments that aren't given come from variables such as
    `PL_TRAINER_MAX_EPOCHS`.
    """

    @functools.wraps(init)
    def __init__(self: Any, **arguments: Any) -> None:
        init(self, **{**_from_variables(type(self)), **arguments})

    return __init__


def _from_variables(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in inspect.signature(kind).parameters:
        if text := os.environ.get(f"PL_{kind.__name__.upper()}_{name.upper()}"):
            found[name] = text
            with contextlib.suppress(ValueError, SyntaxError):  # words are no literals
                found[name] = ast.literal_eval(text)
    return found


def callbacks_of_packages() -> list[Callback]:
    """The callbacks that installed packages add to every Trainer, by entry points that make one or
    several.
    """
    made: list[Callback] = []
    for factory in metadata.entry_points(group=_FACTORIES):
        callbacks = factory.load()()
        made += callbacks if isinstance(callbacks, list) else [callbacks]
    return made
