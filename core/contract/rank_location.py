"""The place and state of one rank when a run hung."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLocation:
    """The place and state of one rank when a run hung, as `HangError` carries it.

    Attributes:
        rank: global rank.
        state: `"waits"` in a collective; `"asleep"`; `"computes"`; `"works"` in other threads or child processes, or
            reads and writes; `"stopped"` by a signal; `"gone"`; `"left"` the run; `"silent"`: no answer, and no
            rank on its host that could look; `"unseen"`: at work or asleep, where there is no /proc;
            `"debugged"`.
        phase: `"set-up"`, `"step"`, `"validation"`, `"checkpoint"`, `"end of epoch"`, ...
        line: the user's, as in `"train.py:12 in training_step"`; empty if it isn't known.
        since_s: seconds since the rank made progress.
        collective: that it waits in, such as `"gloo:all_reduce [[10]]"`; empty if torch has recorded none.
        host: its machine.
        pid: its process.
        awaits: what it waits for, as in `"the output of stage 0 for microbatch 3, of rank 0"`; empty where the strategy
            is no `AwaitsRanks`, or doesn't know it.
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
