"""The forwards that modules have of their own, in place of those of their classes: set, and set
back.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

Forwards = dict["nn.Module", Any]
"""By module; None where it has that of its class."""


def own(modules: Iterable[nn.Module]) -> Forwards:
    """The forwards that modules have of their own."""
    return {one: vars(one).get("forward") for one in modules}


def put(forwards: Mapping[nn.Module, Any]) -> None:
    """Set forwards, or take them away where there is None. Not by `__setattr__`, which is for
    modules.
    """
    for module, forward in forwards.items():
        if forward is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = forward


@contextmanager
def replaced(forwards: Mapping[nn.Module, Any]) -> Iterator[None]:
    """A context in which modules have these forwards."""
    before = own(forwards)
    put(forwards)
    try:
        yield
    finally:
        put(before)
