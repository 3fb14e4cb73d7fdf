"""Monitors whose names look misspelt, as soon as the module has logged something."""

from __future__ import annotations

import re
from types import CodeType
from typing import TYPE_CHECKING

from core_training.module.optimization import takes_metric
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from core_training.run import Run

_MARKS = re.compile(r"[\W_]+")


def warn_of_misspelt_monitors(run: Run, logged: Collection[str]) -> None:
    """Warn on rank 0 of a monitor where a name that was logged has other marks or capitals, or one
    letter more or less.

    A name that nobody has logged is no mistake yet: it may come at an epoch's end, or now and then.
    One that the code of the module or a callback has, or makes of parts that it has, gets no
    warning.

    Args:
        run: whose callbacks and schedulers monitor something.
        logged: by the validation or the step that was the first.
    """
    if not run.strategy.is_global_zero:
        return
    known, owners = run.logged.names(), (run.module, *run.callbacks)
    for who, monitor in _monitors(run):
        near = next((name for name in sorted(logged) if _is_slip(monitor, name)), monitor)
        if monitor not in {near, *known} and not any(
            _says(owner, monitor, near) for owner in owners
        ):
            warn_caller(
                f"{who} monitors {monitor!r}, which nothing has logged so far. Did you mean "
                f"{near!r}?"
            )


def _monitors(run: Run) -> Iterator[tuple[str, str]]:
    for callback in run.callbacks:
        if isinstance(monitor := getattr(callback, "monitor", None), str) and monitor not in (
            "epoch",
            "step",
        ):
            yield type(callback).__name__, monitor
    for item in run.strategy.lr_schedulers:
        if takes_metric(item) and item.monitor is not None:
            yield "A scheduler", item.monitor


def _is_slip(name: str, other: str) -> bool:
    """True if they differ in capitals and marks only, or in a letter that is left out, doubled or
    swapped.
    """
    one, two = sorted((_MARKS.sub("", each.lower()) for each in (name, other)), key=len)
    swapped = [two[:at] + two[at + 1] + two[at] + two[at + 2 :] for at in range(len(two) - 1)]
    shorter = [two[:at] + two[at + 1 :] for at, letter in enumerate(two) if letter.isalpha()]
    return len(one) > 3 and name != other and one in (two, *swapped, *shorter)


def _says(owner: object, text: str, near: str) -> bool:
    """True if methods of the object's classes have `text`, or what makes it differ from `near`, as
    a constant.
    """
    words = {*_MARKS.split(text)} - {*_MARKS.split(near)}
    methods = [method for kind in type(owner).__mro__ for method in vars(kind).values()]
    found: list[object] = [method.__code__ for method in methods if hasattr(method, "__code__")]
    for each in found:  # which grows
        if isinstance(each, CodeType | tuple):
            found.extend(each.co_consts if isinstance(each, CodeType) else each)
        elif isinstance(each, str) and each in text and (each not in near or each in words):
            return True
    return False
