"""The verdict over a standstill: found by the deciding rank, read by the others."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from core.contract import HangError
from core.contract.rank_location import RankLocation
from core.watch.boards import VERDICT
from core.watch.local_ranks import ask_for_stack, with_written_stack
from core.watch.standstill_warnings import StandstillWarnings
from core.watch.termination import continue_process
from core.watch.verdict import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.watch.boards import Board
    from core.watch.options import WatchdogOptions
    from core.watch.rank_status import RankStatus

_WRITES_STACK_S = 0.25


class StandstillDecision:
    """Decides, or reads what another rank has decided.

    Attributes:
        verdict: as it is published; empty before there is one.
        warnings: to stderr.
    """

    def __init__(self, options: WatchdogOptions, machine: str) -> None:
        self.verdict, self.warnings = "", StandstillWarnings(options)
        self._ends_run, self._machine = options.ends_run, machine
        self._suspicion: tuple[object, ...] = ()
        self._num_verdicts = 0

    def read(self, boards: Iterable[Board]) -> None:
        """Read the verdict, if another rank has decided."""
        for board in boards:
            while text := board.read([self._name()])[0]:
                self.verdict = text
                self._num_verdicts += 1

    def decide(self, board: Board, statuses: Sequence[RankStatus]) -> None:
        """Warn of a standstill, or publish the verdict that ends it."""
        verdict = find(statuses)
        # Statuses are up to a second old: a verdict counts when it is found twice.
        before, self._suspicion = self._suspicion, ()
        if verdict is not None:
            self._suspicion = (verdict.absent, verdict.ends, *(each.count for each in statuses))
        if verdict is None or before != self._suspicion:
            return
        if not verdict.ends or not self._ends_run:
            self.warnings.warn(verdict, statuses)
        elif board.is_first_to_decide(self._num_verdicts):
            shown = [self._asked_to_show(each) for each in statuses]
            error = self.warnings.error(find(shown) or verdict, shown)
            self.verdict = json.dumps(
                {
                    "message": error.args[0],
                    "absent": error.absent,
                    "ranks": [asdict(each) for each in error.ranks],
                    "stacks_path": error.stacks_path,
                }
            )
            board.write(self._name(), self.verdict)

    def error(self) -> HangError:
        """The verdict as the error that ends the run."""
        said = json.loads(self.verdict)
        ranks = [RankLocation(**each) for each in said["ranks"]]
        return HangError(said["message"], absent=said["absent"], ranks=ranks, stacks_path=said["stacks_path"])

    def _asked_to_show(self, status: RankStatus) -> RankStatus:
        """The status with the stack of a stopped process, which can write it only while it runs."""
        if status.state != "stopped" or status.machine != self._machine or not self._ends_run:
            return status
        with suppress(OSError):
            ask_for_stack(status)
            continue_process(status.pid, status.began)
            time.sleep(_WRITES_STACK_S)
            os.kill(status.pid, signal.SIGSTOP)  # so that it does no step of its own before it reads the verdict
        return with_written_stack(status)

    def _name(self) -> str:
        return f"{VERDICT}/{self._num_verdicts}"
