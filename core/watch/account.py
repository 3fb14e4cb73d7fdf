"""The account that a rank gives of itself while the ranks confer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from core.contract.whereabouts import Whereabouts


@dataclass(frozen=True, slots=True)
class Account:
    """The account that a rank gives of itself, or one of its host says of it.

    Attributes:
        rank: global rank.
        state: see `core.contract.whereabouts`.
        phase: of its pulse.
        line: the user's own.
        since_s: seconds since it came forward.
        tell_after_s: how long it may stand still before that is told.
        end_after_s: how long it may stand still before that ends the run.
        least_s: the same where it is certain that nothing will move.
        collective: that it waits in.
        is_usual: see `core.watch.recorded.Collective`.
        call: the number of the collective that it tells of instead, which another rank's native code gave up in.
        count: of its pulse.
        host: its machine.
        machine: see `core.watch.kernel.machine`.
        pid: its process.
        thread: the watched one, by Python's number.
        watcher: the thread that watches, by the kernel's number.
        stack: as Python prints it.
        number: of what this rank has said so far.
        began: when its process began, as the kernel counts.
        stacks: path of what faulthandler has written for it, for processes of its machine.
    """

    rank: int
    state: str
    phase: str = ""
    line: str = ""
    since_s: float = 0.0
    tell_after_s: float = 0.0
    end_after_s: float = 0.0
    least_s: float = 0.0
    collective: str = ""
    is_usual: bool = False
    call: str = ""
    count: int = 0
    host: str = ""
    machine: str = ""
    pid: int = 0
    thread: int = 0
    watcher: int = 0
    stack: str = ""
    number: int = 0
    began: str = ""
    stacks: str = ""

    @property
    def is_lost(self) -> bool:
        """True if it is certain that it won't come any more."""
        return self.state in ("gone", "left")

    @property
    def is_to_tell(self) -> bool:
        """True if it has stood still for so long that this is told."""
        return self.since_s > self.tell_after_s

    @property
    def is_to_end(self) -> bool:
        """True if it has stood still for so long that this ends the run."""
        return self.since_s > self.end_after_s

    def lost(self, state: str) -> Account:
        """The account of the same rank once it is certain that it won't come any more."""
        return replace(self, state=state, tell_after_s=self.least_s, end_after_s=self.least_s)

    def to_text(self) -> str:
        """A form for the board."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Account:
        """Read what `to_text` wrote."""
        return cls(**json.loads(text))

    def whereabouts(self) -> Whereabouts:
        """The part that the error carries."""
        return Whereabouts(
            self.rank, self.state, self.phase, self.line, self.since_s, self.collective, self.host, self.pid
        )
