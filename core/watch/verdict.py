"""The verdict on what all ranks say of themselves."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.watch.account import Account

_SURE = ("stopped", "gone", "left")
_WORDS = {
    "waits": "waits for the others",
    "asleep": "is asleep",
    "computes": "computes",
    "works": "works in other threads or processes, or reads and writes",
    "stopped": "is stopped by a signal",
    "gone": "is gone: its process has ended",
    "left": "has left the run",
    "silent": "does not answer",
}
_MOST_SHOWN = 64


@dataclass(frozen=True)
class Verdict:
    """The ranks that don't come, and what they do instead.

    Attributes:
        absent: the ranks that don't come; empty where none is missed, which is told and ends no run.
        reason: in words.
    """

    absent: tuple[int, ...]
    reason: str


def find(accounts: Sequence[Account]) -> Verdict | None:
    """The verdict on what all ranks say; None as long as one may yet come forward.

    Args:
        accounts: one a rank.
    """
    if any(each.state == "debugged" for each in accounts):
        return None
    others = [each for each in accounts if each.state != "waits"]
    if not others:
        return _on_those_who_all_wait(accounts)
    # A rank with time left may be who the others wait for.
    if not all(each.is_overdue for each in others):
        return None
    if len(others) == len(accounts):
        # The last one may have work of its own when the others have left.
        is_over = any(each.state == "left" for each in accounts)
        return None if is_over else Verdict((), "no rank waits for another, and the run goes on: " + _listed(others))
    # Where some are certainly lost, another that is merely slow is not the reason.
    lost = [each for each in others if each.state in _SURE] or others
    return Verdict(tuple(each.rank for each in lost), "; ".join(map(_described, lost[:_MOST_SHOWN])))


def _on_those_who_all_wait(accounts: Sequence[Account]) -> Verdict | None:
    places = defaultdict(list)
    for each in accounts:
        places[each.phase == "end of epoch", each.collective.partition(" ")[0], each.line].append(each)
    if len(places) == 1:
        shapes = defaultdict(list)
        for each in accounts:
            shapes[each.collective].append(each)
        if not all(each.since_s > (each.least_s if len(shapes) > 1 else each.allowed_s) for each in accounts):
            return None
        if len(shapes) > 1:
            odd = _odd(list(shapes.values()))
            return Verdict(_ranks(odd), "all ranks are in the same call, with other shapes: " + _listed(odd))
        return Verdict(_ranks(accounts), "all ranks wait in the same place, and nothing arrives: look at the network")
    # Ranks that wait for each other in different places wait for ever.
    if not all(each.since_s > each.least_s for each in accounts):
        return None
    ended = [each for each in accounts if each.phase == "end of epoch"]
    if ended and len(ended) < len(accounts):
        cure = ". Give all ranks as many batches, for example by limit_train_batches"
        return Verdict(_ranks(ended), "out of data, while the others have more batches: " + _listed(ended) + cure)
    odd = _odd(list(places.values()))
    return Verdict(_ranks(odd), "in another collective than the others: " + _listed(odd))


def _odd(groups: list[list[Account]]) -> list[Account]:
    """The ranks that have gone another way: the only ones that never did so before, else the fewer, else the later."""
    unusual = [group for group in groups if not all(each.is_usual for each in group)]
    if len(unusual) == 1:
        return unusual[0]
    return min(groups, key=lambda group: (len(group), -max(each.count for each in group)))


def _ranks(accounts: Sequence[Account]) -> tuple[int, ...]:
    return tuple(each.rank for each in accounts)


def _listed(accounts: Sequence[Account]) -> str:
    return "; ".join(_described(each) for each in accounts[:_MOST_SHOWN])


def _described(each: Account) -> str:
    where = f" at {each.line}" if each.line else ""
    inside = f" ({each.collective})" if each.collective and each.state == "waits" else ""
    phase = f", phase {each.phase}" if each.phase else ""
    return f"rank {each.rank} {_WORDS.get(each.state, each.state)}{where}{inside}{phase}, for {each.since_s:.0f} s"


def table(accounts: Sequence[Account]) -> str:
    """A line a rank."""
    rows = [
        (f"rank {each.rank}", each.state, each.phase, f"{each.since_s:.0f} s", each.line or "?", each.collective)
        for each in accounts[:_MOST_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    more = [f"  and {len(accounts) - _MOST_SHOWN} more"] if len(accounts) > _MOST_SHOWN else []
    return "\n".join([line.rstrip() for line in lines] + more)
