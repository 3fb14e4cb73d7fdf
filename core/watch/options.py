"""Options of the watchdog: how long it waits, and what it does then."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta

from core.contract import ConfigurationError
from core.watch import kernel

VARIABLE = "CORE_WATCH"


@dataclass(frozen=True, kw_only=True)
class WatchdogOptions:
    """Options of the watchdog over the ranks, for `Fabric(watch=...)` and `Trainer(watch=...)`.

    A standstill leads to a warning first, and ends the run much later. Collectives that can't match
    any more end it at once. A phase that has already survived a longer standstill than a limit has
    twice that time as its limit.

    Attributes:
        limit: how long all ranks may stand still before a warning on stderr, with all stacks in a
            file.
        end_after: how long all ranks may stand still, none of them busy, before the run ends; never
            less than `limit`. A busy rank has ten times that, since no watchdog can tell a long
            computation from an endless one.
        grace: how long a rank may take to end by itself once the run ends; it is ended by force
            then.
        ends_run: False for warnings only.
        folder: for the file with all stacks; None is the temporary folder.
    """

    limit: timedelta = timedelta(seconds=30)
    end_after: timedelta = timedelta(minutes=5)
    grace: timedelta = timedelta(seconds=10)
    ends_run: bool = True
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "end_after", "grace"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value <= timedelta():
                raise ConfigurationError(
                    f"WatchdogOptions({name}={value!r}): expected a timedelta above "
                    f"0, as in WatchdogOptions({name}=timedelta(seconds=60)). watch=False turns "
                    "the watch off."
                )


def chosen(given: bool | WatchdogOptions | None) -> WatchdogOptions | None:
    """The user's options, with those of the environment variable applied; None for no watchdog.

    Raises:
        ConfigurationError: neither an argument nor a value of the variable that there is.
    """
    if not isinstance(given, bool | WatchdogOptions | None):
        raise ConfigurationError(
            f"watch={given!r}: expected True, False, or core.WatchdogOptions(...)."
        )
    if given is False or is_debugged():
        return None
    options = WatchdogOptions()
    if isinstance(given, WatchdogOptions):
        options = given
    setting = os.environ.get(VARIABLE, "").strip().lower()
    if setting in ("off", "0", "false"):
        return None
    if setting == "report":
        return replace(options, ends_run=False)
    if setting not in ("", "on", "1", "true"):
        try:
            seconds = float(setting)
        except ValueError:
            seconds = math.nan
        if not 1 < seconds < math.inf:
            raise ConfigurationError(
                f"{VARIABLE}={setting!r}: expected off, report, or a number of seconds above 1."
            )
        end_after = timedelta(seconds=seconds)
        return replace(options, limit=min(options.limit, end_after), end_after=end_after)
    return options


def is_debugged() -> bool:
    """True under a debugger, where to stand still is what is wanted."""
    return (
        sys.gettrace() is not None
        or "debugpy" in sys.modules
        or "pydevd" in sys.modules
        or kernel.is_traced()
    )
