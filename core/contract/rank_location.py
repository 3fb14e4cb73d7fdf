"""The place and state of one rank when a run hung, and the protocol of strategies that know for
whom it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class RankLocation:
    """The place and state of one rank when a run hung, as `HangError` carries it.

    Attributes:
        rank: global rank.
        state: `"waits"` in a collective; `"asleep"`; `"computes"`; `"works"` in other threads or
            child processes, or reads and writes; `"stopped"` by a signal; `"gone"`; `"left"` the
            run; `"silent"`: no answer, and no rank on its host that could look; `"unseen"`: at work
            or asleep, where there is no /proc; `"debugged"`.
        phase: `"set-up"`, `"step"`, `"validation"`, `"checkpoint"`, `"end of epoch"`, ...
        line: the user's, as in `"train.py:12 in training_step"`; empty if it isn't known.
        since_s: seconds since the rank made progress.
        collective: that it waits in, such as `"gloo:all_reduce [[10]]"`; empty if torch has
            recorded none.
        host: its machine.
        pid: its process.
        awaits: what it waits for, as in `"the output of stage 0 for microbatch 3, of rank 0"`;
            empty where the strategy is no `AwaitsRanks`, or doesn't know it.
    """

    rank: int
    state: str
    phase: str = ""
    line: str = ""
    since_s: float = 0.0
    collective: str = ""
    host: str = ""
    pid: int = 0
    awaits: str = ""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A message, or several, for which a rank waits.

    Attributes:
        what: in words, as in `"the output of stage 0 for microbatch 3"`.
        ranks: the global ranks that it comes from, or that are to take it.
    """

    what: str
    ranks: tuple[int, ...]


@runtime_checkable
class AwaitsRanks(Protocol):
    """A strategy in which a rank waits for some of the others, as the stages of a pipeline do.

    The watch asks for it while a rank stands still. Its report then has what each rank waits for;
    and where all ranks wait, it names those that others wait for and that wait for nobody.
    """

    def awaited(self) -> Awaited | None:
        """Any thread, at any time, without a collective. The messages for which this rank waits;
        None if unknown.

        It is asked only of a rank whose thread waits, and may be what it waited for last while it
        doesn't.
        """
