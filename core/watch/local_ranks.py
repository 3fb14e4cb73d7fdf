"""Unresponsive ranks of this machine, examined from another process."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.watch import kernel
from core.watch.standstill import end_after
from core.watch.termination import SIGNAL
from core.watch.users_code import is_users

if TYPE_CHECKING:
    from core.watch.rank_status import RankStatus

_WORKED_S = 0.02
"""CPU seconds between two examinations above which a process counts as busy."""
_ASKS_EVERY = 5
"""Examinations from one request for a stack to the next."""
_SHOWN = 50_000
"""Characters of what faulthandler has written, of which the newest are shown."""
_FRAME = re.compile(
    r'^  File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)$', re.MULTILINE
)


class LocalRanks:
    """Examines other ranks of this machine, again and again.

    Attributes:
        longest_s: seconds for which a rank that can't be examined may stand still.
    """

    def __init__(self, end_after_s: float) -> None:
        self._end_after_s = end_after_s
        self._seen: dict[int, tuple[float, float, int]] = {}
        self.longest_s = end_after(end_after_s, float("inf"))

    def forget(self, rank: int) -> None:
        """Drop the history of a rank that has answered."""
        self._seen.pop(rank, None)

    def examine(self, last: RankStatus, own: RankStatus) -> RankStatus:
        """The status of a silent rank.

        Args:
            last: the last status that it published.
            own: the status of the rank that waits for it.
        """
        if kernel.is_gone(last.pid):
            return last.lost("gone")
        state = kernel.process_state(last.pid)
        cpu_s, worked_s, num_looks = self._seen.get(last.rank, (0.0, 0.0, 0))
        before_s, cpu_s = cpu_s, kernel.work_of_children(last.pid).cpu_s + kernel.cpu_s(last.pid)
        is_at_work = state in ("", "R", "D") or (num_looks > 0 and cpu_s - before_s > _WORKED_S)
        if is_at_work:
            worked_s = own.since_s
        self._seen[last.rank] = cpu_s, worked_s, num_looks + 1
        last = replace(last, phase=last.phase or own.phase)
        seen = replace(
            last, warn_after_s=own.warn_after_s, end_after_s=end_after(self._end_after_s, worked_s)
        )
        if state in ("T", "t"):
            # The others wait where it is; what it has said itself may be old.
            return replace(seen, state="stopped", phase=own.phase, end_after_s=self._end_after_s)
        # It holds Python's lock in native code. faulthandler writes its stack without that lock.
        if num_looks % _ASKS_EVERY == 0:
            ask_for_stack(last)
        if state and is_at_work:
            return with_written_stack(replace(seen, state="computes"))
        return with_written_stack(replace(seen, state="silent"))


def ask_for_stack(status: RankStatus) -> None:
    """Make faulthandler write the stacks of a process. Signals its watching thread, since others
    would wake up.

    In a stopped process it is the main thread, which so writes before it goes on from where it was
    stopped.
    """
    thread = status.watcher
    if status.state == "stopped":
        thread = status.pid
    kernel.signal_thread(status.pid, thread, SIGNAL)


def with_written_stack(status: RankStatus) -> RankStatus:
    """The status with the stack that faulthandler has written."""
    with suppress(OSError):
        text = Path(status.stacks).read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
        if text:
            return replace(status, stack=text, line=line_in(text, status.thread) or status.line)
    return status


def line_in(text: str, thread: int) -> str:
    """The innermost line of the user's code in the last stack of the thread with this Python
    identifier.
    """
    head = f"hread 0x{thread:016x}"
    if head not in text:
        return ""
    for match in _FRAME.finditer(text.rpartition(head)[2].partition("\n\n")[0]):
        if is_users(match["file"]):
            return f"{match['file']}:{match['line']} in {match['name']}"
    return ""
