"""The part of one rank in the end of a run: who must end before it, and whom it ends itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from core.watch import kernel

if TYPE_CHECKING:
    from core.contract import HangError
    from core.watch.other_ranks import OtherRanks
    from core.watch.own_status import OwnStatus

_LOOKS_EVERY_S = 0.25


def await_others(error: HangError, host: str, grace_s: float) -> None:
    """Wait until the others have ended with the verdict: this process breaks their connections when it ends."""
    ends_s = time.monotonic() + grace_s
    others = [each for each in error.ranks if each.state not in ("aborts", "gone", "left")]
    while time.monotonic() < ends_s and any(
        each.host != host or kernel.process_state(each.pid) not in ("Z", "") for each in others
    ):
        time.sleep(_LOOKS_EVERY_S)


def absent_here(error: HangError, own: OwnStatus, others: OtherRanks) -> list[tuple[int, str]]:
    """The absent processes of this machine, and when each began; none if another rank of it is to end them."""
    here = [each for each in error.ranks if each.host == own.host]
    present = [each.rank for each in here if each.rank not in error.absent]
    if present and min(present) != own.rank:
        return []
    absent = [each for each in here if each.rank in error.absent and each.pid != own.pid]
    statuses = others.statuses
    return [(each.pid, statuses[each.rank].began if each.rank in statuses else "") for each in absent]
