"""The verdict on the statuses of all ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.watch.rank_status import RankStatus

_SURE = ("stopped", "gone", "left")
_WORDS = {
    "waits": "waits for the others",
    "asleep": "is asleep",
    "computes": "computes",
    "works": "works in other threads or processes, or reads and writes",
    "stopped": "is stopped by a signal",
    "gone": "is gone: its process has ended",
    "left": "has left the run",
    "unseen": "stands in (whether it works can't be seen, since /proc can't be read)",
    "silent": "does not answer",
}
_SAME_CALL = "all ranks are in the same call, with other shapes"
_MORE_CALLS = (
    "all ranks are in the same call, and these made one before it that the others did not, such as "
    "self.log(..., sync_dist=True), all_gather or a save under `if rank == 0`; let all ranks make "
    "it: "
)
_MOST_SHOWN = 64


@dataclass(frozen=True)
class Verdict:
    """The absent ranks, and what they do instead.

    Attributes:
        absent: the missing ranks.
        reason: in words.
        ends: True if the verdict ends the run, False if it is a warning only.
    """

    absent: tuple[int, ...]
    reason: str
    ends: bool = True


def find(statuses: Sequence[RankStatus]) -> Verdict | None:
    """The verdict on the statuses of all ranks; None as long as one may still make progress.

    Args:
        statuses: one a rank.
    """
    if any(each.state == "debugged" for each in statuses):
        return None
    others = [each for each in statuses if each.state != "waits"]
    if not others:
        return _on_those_who_all_wait(statuses)
    standing = [each for each in statuses if not each.is_lost]
    if standing and all(each.state == "waits" for each in standing):
        # Who waits for one that won't come waits for ever.
        is_sure = all(each.since_s > each.least_s for each in statuses)
        return Verdict(_ranks(others), _listed(others)) if is_sure else None
    # A rank with time left may be who the others wait for.
    if not standing or not all(each.warns for each in standing):
        return None
    ends = all(each.ends for each in standing)
    if all(each.state != "waits" for each in standing):
        return Verdict(_ranks(standing), f"no rank waits for another: {_listed(standing)}", ends)
    # Where some are certainly lost, another that is merely slow is not the reason.
    named = [each for each in others if each.state in _SURE] or others
    return Verdict(_ranks(named), _listed(named), ends)


def _on_those_who_all_wait(statuses: Sequence[RankStatus]) -> Verdict | None:
    places = defaultdict(list)
    for each in statuses:
        places[each.phase == "end of epoch", each.collective.partition(" ")[0], each.line].append(
            each
        )
    if len(places) == 1:
        shapes = defaultdict(list)
        for each in statuses:
            shapes[each.collective].append(each)
        if len(shapes) > 1:
            is_sure = all(each.since_s > each.least_s for each in statuses)
            return _on_groups(list(shapes.values()), *[_SAME_CALL] * 2) if is_sure else None
        most = max(each.num_calls for each in statuses)
        ahead = [each for each in statuses if each.num_calls == most]
        if len(ahead) < len(statuses):
            is_sure = all(each.since_s > each.least_s for each in statuses)
            return Verdict(_ranks(ahead), _MORE_CALLS + _listed(ahead)) if is_sure else None
        if not all(each.warns for each in statuses):
            return None
        reason = "all ranks wait in the same place, and nothing arrives: look at the network"
        return Verdict(_ranks(statuses), reason, all(each.ends for each in statuses))
    # Ranks that wait for each other in different places wait for ever.
    if not all(each.since_s > each.least_s for each in statuses):
        return None
    if any(each.awaited_ranks for each in statuses):
        return _on_those_awaited(statuses)
    saving = [each for each in statuses if each.phase == "checkpoint"]
    if 0 < len(saving) <= len(statuses) / 2:
        others = _listed_first([[each for each in statuses if each not in saving]])
        cure = (
            ". All ranks must save and load: don't ask for it under a condition such as "
            "is_global_zero"
        )
        reason = (
            f"in a checkpoint, to which the others don't come: {_listed(saving)}; while "
            f"{others}{cure}"
        )
        return Verdict(_ranks(saving), reason)
    ended = [each for each in statuses if each.phase == "end of epoch"]
    if ended and len(ended) < len(statuses):
        cure = ". Give all ranks as many batches, for example by limit_train_batches"
        return Verdict(
            _ranks(ended),
            "out of data, while the others have more batches: " + _listed(ended) + cure,
        )
    return _on_groups(
        list(places.values()), "in another collective than the others", "in different collectives"
    )


def _on_those_awaited(statuses: Sequence[RankStatus]) -> Verdict:
    """The verdict where some say whom they wait for: who is waited for and waits for nobody in turn
    went astray.
    """
    awaiting = {each.rank: each.awaited_ranks for each in statuses if each.awaited_ranks}
    wanted = {rank for ranks in awaiting.values() for rank in ranks}
    astray = [each for each in statuses if each.rank in wanted and each.rank not in awaiting]
    if not astray:  # from each rank that is waited for one comes to another, and so round
        circle = [each for each in statuses if each.rank in wanted]
        return Verdict(_ranks(circle), f"ranks wait for each other: {_listed(circle)}")
    groups = defaultdict(list)
    for each in astray:
        groups[each.collective.partition(" ")[0], each.line].append(each)
    odd = (_odd(list(groups.values())) if len(groups) > 1 else []) or astray
    others = [each for each in statuses if each not in odd]
    return Verdict(
        _ranks(odd), f"in another call than the others: {_listed(odd)}; while {_listed(others)}"
    )


def _on_groups(groups: list[list[RankStatus]], some: str, all_of_them: str) -> Verdict:
    """The verdict on ranks whose calls differ: `some` diverged, or it is unknown which ones did."""
    if odd := _odd(groups):
        others = [group for group in groups if group is not odd]
        return Verdict(_ranks(odd), f"{some}: {_listed(odd)}; while {_listed_first(others)}")
    everyone = sorted(rank for group in groups for rank in _ranks(group))
    reason = f"{all_of_them}, and nothing tells who went astray: {_listed_first(groups)}"
    return Verdict(tuple(everyone), reason)


def _odd(groups: list[list[RankStatus]]) -> list[RankStatus]:
    """The diverged ranks: the only ones whose call is new to them, else the minority; empty if
    unknown.
    """
    unusual = [group for group in groups if not all(each.is_usual for each in group)]
    if len(unusual) == 1:
        return unusual[0]
    fewest, *more = sorted(groups, key=len)
    return fewest if len(fewest) < len(more[0]) else []


def _listed_first(groups: list[list[RankStatus]]) -> str:
    """The first rank of each group, and how many are with it."""
    firsts = [(_described(group[0]), len(group) - 1) for group in groups[:_MOST_SHOWN]]
    return "; ".join(
        first + (f" (and {num_more} more there)" if num_more else "") for first, num_more in firsts
    )


def _ranks(statuses: Sequence[RankStatus]) -> tuple[int, ...]:
    return tuple(each.rank for each in statuses)


def _listed(statuses: Sequence[RankStatus]) -> str:
    return "; ".join(_described(each) for each in statuses[:_MOST_SHOWN])


def _described(each: RankStatus) -> str:
    where = f" at {each.line}" if each.line else ""
    inside = f" ({each.collective})" if each.collective and each.state == "waits" else ""
    does = f"waits for {each.awaits}" if each.awaits else _WORDS.get(each.state, each.state)
    phase = f", phase {each.phase}" if each.phase else ""
    return f"rank {each.rank} {does}{where}{inside}{phase}, for {each.since_s:.0f} s"


def _inside(each: RankStatus) -> str:
    return ", in ".join(filter(None, (each.awaits and f"for {each.awaits}", each.collective)))


def table(statuses: Sequence[RankStatus]) -> str:
    """The statuses as a table, one line for each rank."""
    rows = [
        (
            f"rank {each.rank}",
            each.state,
            each.phase,
            f"{each.since_s:.0f} s",
            each.line or "?",
            _inside(each),
        )
        for each in statuses[:_MOST_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    more = [f"  and {len(statuses) - _MOST_SHOWN} more"] if len(statuses) > _MOST_SHOWN else []
    return "\n".join([line.rstrip() for line in lines] + more)
