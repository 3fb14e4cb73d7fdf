"""A watch over the ranks of a run: it says which one hangs, where and how, and ends the run with that if it lasts.

A rank marks its progress by plain stores into `pulse`. One thread a rank looks at them once a second; only when nothing
has moved for a while do ranks talk about it, through connections of their own.
"""

from typing import TYPE_CHECKING

from core.door import door

if TYPE_CHECKING:
    from core.watch.options import Watch
    from core.watch.progress import phase, pulse
    from core.watch.run import begin, end, explain, let_abort, tell_of_the_late

__all__ = ["Watch", "begin", "end", "explain", "let_abort", "phase", "pulse", "tell_of_the_late"]

__getattr__, __dir__ = door(
    __name__,
    {
        ".options": ("Watch",),
        ".progress": ("phase", "pulse"),
        ".run": ("begin", "end", "explain", "let_abort", "tell_of_the_late"),
    },
)
