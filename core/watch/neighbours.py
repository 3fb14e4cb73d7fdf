"""Ranks of this machine that don't answer, seen from outside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.watch import kernel
from core.watch.ending import SIGNAL
from core.watch.standstill import end_after
from core.watch.written_stack import line_in

if TYPE_CHECKING:
    from core.watch.account import Account

_WORKED_S = 0.02
"""CPU seconds between two looks, above which a process has been at work."""
_ASKS_EVERY = 5
"""Looks from one question for a stack to the next."""
_SHOWN = 50_000
"""Characters of what faulthandler has written, of which the newest are shown."""


class Neighbours:
    """Looks at other ranks of this machine, again and again."""

    def __init__(self, end_after_s: float) -> None:
        self._end_after_s = end_after_s
        self._seen: dict[int, tuple[float, float, int]] = {}

    @property
    def longest_s(self) -> float:
        """Seconds for which a rank may stand still that can't be looked at."""
        return end_after(self._end_after_s, float("inf"))

    def forget(self, rank: int) -> None:
        """It has answered."""
        self._seen.pop(rank, None)

    def look_at(self, last: Account, own: Account) -> Account:
        """The account of a rank that has last said `last`; who waits for it says `own`."""
        if kernel.is_gone(last.pid, last.began):
            return last.lost("gone")
        state = kernel.process_state(last.pid)
        cpu_s, worked_s, num_looks = self._seen.get(last.rank, (0.0, 0.0, 0))
        before_s, cpu_s = cpu_s, kernel.work_of_children(last.pid).cpu_s + kernel.cpu_s(last.pid)
        is_at_work = state in ("", "R", "D") or (num_looks > 0 and cpu_s - before_s > _WORKED_S)
        worked_s = own.since_s if is_at_work else worked_s
        self._seen[last.rank] = cpu_s, worked_s, num_looks + 1
        last = replace(last, phase=last.phase or own.phase)
        seen = replace(last, tell_after_s=own.tell_after_s, end_after_s=end_after(self._end_after_s, worked_s))
        if state in ("T", "t"):
            # The others wait where it is; what it has said itself may be old.
            return replace(seen, state="stopped", phase=own.phase, end_after_s=self._end_after_s)
        # It holds Python's lock in native code. faulthandler writes its stack without that lock.
        if num_looks % _ASKS_EVERY == 0:
            ask_for_stack(last)
        return with_written_stack(replace(seen, state="computes" if state and is_at_work else "silent"))


def ask_for_stack(account: Account) -> None:
    """Let faulthandler write the stacks of a process, in the thread that watches it: others would wake up."""
    kernel.signal_thread(account.pid, account.watcher, SIGNAL)


def with_written_stack(account: Account) -> Account:
    """With what faulthandler has written."""
    text = ""
    with suppress(OSError):
        text = Path(account.stacks).read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
    return replace(account, stack=text, line=line_in(text, account.thread) or account.line) if text else account
