"""The watchdog over the ranks of a run: reports which one hangs, where and how, and ends the run if
that lasts.

Each rank marks its progress by plain stores into `heartbeat`, which a thread reads once a second.
Ranks exchange messages only after a while without progress, over connections of their own.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.watch.lifecycle import begin, end, explain, warn_of_late_ranks
    from core.watch.options import WatchdogOptions
    from core.watch.phases import heartbeat, phase

__all__ = ["WatchdogOptions", "begin", "end", "explain", "heartbeat", "phase", "warn_of_late_ranks"]

__getattr__, __dir__ = lazy_exports(__name__)
