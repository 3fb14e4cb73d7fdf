"""The status of a rank, as the ranks publish it during a standstill."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

from core.contract.rank_location import RankLocation

_LOADING = (
    "<frozen importlib",
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/compile_fx.py",
)
"""Places in the stack of a thread that imports or compiles."""


@dataclass(frozen=True, slots=True)
class RankStatus(RankLocation):
    """The status of a rank, published by itself, or by a rank of its host: more than a `HangError`
    carries.

    Attributes:
        warn_after_s: how long it may stand still before a warning.
        end_after_s: how long it may stand still before that ends the run.
        least_s: the same where it is certain that nothing will move.
        awaited_ranks: of which ranks is what it waits for.
        is_usual: as in `core.watch.flight_recorder.Collective`.
        num_calls: the number of collectives that the rank has begun in the group of `collective`; 0
            if unknown.
        count: of its heartbeat.
        machine: see `core.watch.kernel.machine`.
        thread: the watched one, by Python's number.
        watcher: the thread that watches, by the kernel's number.
        stack: as Python prints it.
        number: of the statuses that this rank has published so far.
        stacks: path of what faulthandler has written for it, for processes of its machine.
    """

    warn_after_s: float = 0.0
    end_after_s: float = 0.0
    least_s: float = 0.0
    awaited_ranks: tuple[int, ...] = ()
    is_usual: bool = False
    num_calls: int = 0
    count: int = 0
    machine: str = ""
    thread: int = 0
    watcher: int = 0
    stack: str = ""
    number: int = 0
    stacks: str = ""

    @property
    def is_lost(self) -> bool:
        """True if the rank has certainly left or ended."""
        return self.state in ("gone", "left")

    @property
    def is_loading(self) -> bool:
        """True if the rank imports or compiles, and is at work: on a busy machine that takes
        long.
        """
        inner = self.stack.rpartition("/core/")[2]  # the program may be a module that is imported
        return self.state in ("computes", "works", "unseen") and any(
            place in inner for place in _LOADING
        )

    @property
    def warns(self) -> bool:
        """True if the rank has stood still for longer than `warn_after_s`."""
        return self.since_s > self.warn_after_s

    @property
    def ends(self) -> bool:
        """True if the rank has stood still for longer than `end_after_s`."""
        return self.since_s > self.end_after_s

    def lost(self, state: str) -> RankStatus:
        """The status of the same rank once it has certainly left or ended."""
        return replace(self, state=state, warn_after_s=self.least_s, end_after_s=self.least_s)

    def to_text(self) -> str:
        """The status as JSON, for the board."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RankStatus:
        """Read what `to_text` wrote."""
        read = json.loads(text)
        return cls(**read | {"awaited_ranks": tuple(read.get("awaited_ranks", ()))})

    def location(self) -> RankLocation:
        """The part of the status that a HangError carries."""
        return RankLocation(*(getattr(self, one.name) for one in fields(RankLocation)))
