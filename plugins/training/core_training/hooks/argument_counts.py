"""The number of arguments that a user's method takes: counted once a stage, never in a step."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING

from core.contract import ModuleError
from core_training.hooks.event_hooks import EventHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STEP = ("batch", "batch_idx", "dataloader_idx")


def call_with(
    call: Callable[..., object],
    method: Callable[..., object],
    *,
    num_arguments: int,
    num_loaders: int = 1,
) -> Callable[..., object]:
    """`call` with as many of the arguments of a step as `method` takes.

    Args:
        call: runs the method, perhaps through a wrapper.
        method: the user's own, whose signature counts.
        num_arguments: what the caller has to give: (batch, batch_idx) or (batch, batch_idx,
            dataloader_idx).
        num_loaders: of one loader, the number is given to a method that needs it alone.

    Raises:
        ModuleError: it takes none, or needs more.
    """
    num_taken = count_accepted(method, _STEP[:num_arguments], least=1)
    if num_loaders == 1 and num_taken == len(_STEP) and _takes(method, num_taken - 1):
        num_taken -= 1
    return cut(call, num_arguments, num_taken)


def cut(call: Callable[..., object], num_given: int, num_taken: int) -> Callable[..., object]:
    """A function that takes `num_given` arguments and passes the first `num_taken` on; `call` if
    that is all.
    """
    if num_taken >= num_given:
        return call
    return lambda *arguments: call(*arguments[:num_taken])


def count_accepted(
    method: Callable[..., object], names: Sequence[str], *, least: int, owner: str = ""
) -> int:
    """The number of given arguments that a method takes.

    Args:
        method: the user's own.
        names: of the arguments, in order.
        least: so many of them it has to take.
        owner: class of the method, if its own name lacks it.

    Raises:
        ModuleError: it takes too few, or needs more.
    """
    for number in range(len(names), least - 1, -1):
        if _takes(method, number):
            return number
    name = owner or getattr(method, "__qualname__", repr(method))
    may = ""
    if least < len(names):
        may = ", of which those at the end may be left out"
    raise ModuleError(
        f"{name}{inspect.signature(method)} can't be called; it gets ({', '.join(names)}){may}."
    )


def _takes(method: Callable[..., object], number: int) -> bool:
    """True if a method can be called with so many arguments."""
    try:
        inspect.signature(method).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # written in C, and says nothing of itself
        pass
    return True


@cache
def hook_arguments(name: str) -> tuple[str, ...]:
    """Names of the arguments that a callback's hook gets: trainer, module, and the event's own."""
    return tuple(inspect.signature(getattr(EventHooks, name)).parameters)[1:]
