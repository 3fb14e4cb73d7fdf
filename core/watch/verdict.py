"""The verdict on the statuses of all ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    if not standing:
        return None
    if all(each.state == "waits" for each in standing):
        if _is_for_ever(statuses):
            return Verdict(_ranks(others), _listed(others))
        return None
    # A rank with time left may be who the others wait for.
    if not all(each.warns for each in standing):
        return None
    ends = all(each.ends for each in standing)
    if all(each.state != "waits" for each in standing):
        return Verdict(_ranks(standing), f"no rank waits for another: {_listed(standing)}", ends)
    # Where some are certainly lost, another that is merely slow is not the reason.
    named = [each for each in others if each.state in _SURE] or others
    return Verdict(_ranks(named), _listed(named), ends)


def _is_for_ever(statuses: Sequence[RankStatus]) -> bool:
    """True if ranks have waited long enough for one that won't come, or for different calls."""
    return all(each.since_s > each.least_s for each in statuses)


def _on_those_who_all_wait(statuses: Sequence[RankStatus]) -> Verdict | None:
    places = _groups(
        statuses, lambda each: (each.phase == "end of epoch", _call_of(each), each.line)
    )
    shapes = _groups(statuses, lambda each: each.collective)
    most = max(each.num_calls for each in statuses)
    ahead = [each for each in statuses if each.num_calls == most]
    if len(places) == len(shapes) == 1 and len(ahead) == len(statuses):
        if not all(each.warns for each in statuses):
            return None
        reason = "all ranks wait in the same place, and nothing arrives: look at the network"
        return Verdict(_ranks(statuses), reason, all(each.ends for each in statuses))
    if not _is_for_ever(statuses):
        return None
    if len(places) > 1:
        return _on_different_places(statuses, places)
    if len(shapes) > 1:
        return _on_groups(shapes, _SAME_CALL, _SAME_CALL)
    return Verdict(_ranks(ahead), _MORE_CALLS + _listed(ahead))


def _on_different_places(statuses: Sequence[RankStatus], places: list[list[RankStatus]]) -> Verdict:
    if any(each.awaited_ranks for each in statuses):
        return _on_those_awaited(statuses)
    saving = [each for each in statuses if each.phase == "checkpoint"]
    if 0 < len(saving) <= len(statuses) / 2:
        others = _listed_first([[each for each in statuses if each not in saving]])
        return Verdict(
            _ranks(saving),
            f"in a checkpoint, to which the others don't come: {_listed(saving)}; while {others}. "
            "All ranks must save and load: don't ask for it under a condition such as "
            "is_global_zero",
        )
    ended = [each for each in statuses if each.phase == "end of epoch"]
    if ended and len(ended) < len(statuses):
        return Verdict(
            _ranks(ended),
            f"out of data, while the others have more batches: {_listed(ended)}. Give all ranks as "
            "many batches, for example by limit_train_batches",
        )
    return _on_groups(places, "in another collective than the others", "in different collectives")


def _on_those_awaited(statuses: Sequence[RankStatus]) -> Verdict:
    """The verdict where some say whom they wait for: who is waited for and waits for nobody in turn
    went astray.
    """
    wanted = {rank for each in statuses for rank in each.awaited_ranks}
    circle = [each for each in statuses if each.rank in wanted]
    astray = [each for each in circle if not each.awaited_ranks]
    if not astray:  # from each rank that is waited for one comes to another, and so round
        return Verdict(_ranks(circle), f"ranks wait for each other: {_listed(circle)}")
    groups = _groups(astray, lambda each: (_call_of(each), each.line))
    odd = _odd(groups) or astray
    others = [each for each in statuses if each not in odd]
    return Verdict(
        _ranks(odd), f"in another call than the others: {_listed(odd)}; while {_listed(others)}"
    )


def _on_groups(groups: list[list[RankStatus]], some: str, all_of_them: str) -> Verdict:
    """The verdict on ranks whose calls differ: `some` diverged, or it is unknown which ones did."""
    odd = _odd(groups)
    if odd:
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
    by_size = sorted(groups, key=len)
    if len(by_size) > 1 and len(by_size[0]) == len(by_size[1]):
        return []
    return by_size[0]


def _groups(
    statuses: Sequence[RankStatus], key: Callable[[RankStatus], object]
) -> list[list[RankStatus]]:
    found = defaultdict(list)
    for each in statuses:
        found[key(each)].append(each)
    return [*found.values()]


def _call_of(each: RankStatus) -> str:
    """Its collective, without the shapes."""
    return each.collective.partition(" ")[0]


def _listed_first(groups: list[list[RankStatus]]) -> str:
    """The first rank of each group, and how many are with it."""
    firsts = []
    for first, *more in groups[:_MOST_SHOWN]:
        shown = _described(first)
        if more:
            shown += f" (and {len(more)} more there)"
        firsts.append(shown)
    return "; ".join(firsts)


def _ranks(statuses: Sequence[RankStatus]) -> tuple[int, ...]:
    return tuple(each.rank for each in statuses)


def _listed(statuses: Sequence[RankStatus]) -> str:
    return "; ".join(_described(each) for each in statuses[:_MOST_SHOWN])


def _described(each: RankStatus) -> str:
    text = f"rank {each.rank} {_WORDS.get(each.state, each.state)}"
    if each.awaits:
        text = f"rank {each.rank} waits for {each.awaits}"
    if each.line:
        text += f" at {each.line}"
    if each.collective and each.state == "waits":
        text += f" ({each.collective})"
    if each.phase:
        text += f", phase {each.phase}"
    return f"{text}, for {each.since_s:.0f} s"


def table(statuses: Sequence[RankStatus]) -> str:
    """The statuses as a table, one line for each rank."""
    rows = []
    for each in statuses[:_MOST_SHOWN]:
        waits_in = [each.collective]
        if each.awaits:
            waits_in.insert(0, f"for {each.awaits}")
        inside = ", in ".join(filter(None, waits_in))
        since = f"{each.since_s:.0f} s"
        rows.append((f"rank {each.rank}", each.state, each.phase, since, each.line or "?", inside))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    if len(statuses) > _MOST_SHOWN:
        lines.append(f"  and {len(statuses) - _MOST_SHOWN} more")
    return "\n".join(lines)
