"""The part of one rank in the end of a run: whom it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contract import HangError
    from core.watch.other_ranks import OtherRanks
    from core.watch.own_status import OwnStatus


def absent_here(error: HangError, own: OwnStatus, others: OtherRanks) -> list[tuple[int, str]]:
    """The absent processes of this machine, and when each began; none if another rank of it is to end them."""
    here = [each for each in error.ranks if each.host == own.host]
    present = [each.rank for each in here if each.rank not in error.absent]
    if present and min(present) != own.rank:
        return []
    absent = [each for each in here if each.rank in error.absent and each.pid != own.pid]
    statuses = others.statuses
    return [(each.pid, statuses[each.rank].began if each.rank in statuses else "") for each in absent]
