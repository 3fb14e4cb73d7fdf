"""Monitors whose names look misspelt, as soon as the module has logged something."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core_training.module.optimization import takes_metric
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Collection

    from core_training.run import Run


def warn_of_misspelt_monitors(run: Run, logged: Collection[str]) -> None:
    """Warn on rank 0 of a monitor where a name that was logged has other marks or capitals.

    Any other name that nobody has logged is no mistake yet: it may come at an epoch's end, or now
    and then.

    Args:
        run: whose callbacks and schedulers monitor something.
        logged: by the validation or the step that was the first.
    """
    if not run.strategy.is_global_zero:
        return
    monitors = [(type(each).__name__, getattr(each, "monitor", None)) for each in run.callbacks]
    for item in run.strategy.lr_schedulers:
        if takes_metric(item):
            monitors.append(("A scheduler", item.monitor))
    known = run.logged.names()
    by_letters = {_letters(name): name for name in logged}
    for who, monitor in monitors:
        if isinstance(monitor, str) and monitor not in known and _letters(monitor) in by_letters:
            warn_caller(
                f"{who} monitors {monitor!r}, which nothing has logged so far. Did you mean "
                f"{by_letters[_letters(monitor)]!r}?"
            )


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
