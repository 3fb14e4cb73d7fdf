"""The verdict over a standstill: found by the deciding rank, read by the others; its warning, error
and stacks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.contract import HangError
from core.launch.worker_failure import hang_of, parts_of
from core.watch.boards import VERDICT
from core.watch.local_ranks import ask_for_stack, with_written_stack
from core.watch.termination import continue_process
from core.watch.verdict import find, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.watch.boards import Board
    from core.watch.options import WatchdogOptions
    from core.watch.rank_status import RankStatus
    from core.watch.verdict import Verdict

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

    def read(self, board: Board) -> None:
        """Read the verdict, if another rank has decided."""
        text = board.read([self._name()])[0]
        if text:
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
            self.verdict = json.dumps(parts_of(error))
            board.write(self._name(), self.verdict)

    def error(self) -> HangError:
        """The verdict as the error that ends the run."""
        return hang_of(json.loads(self.verdict))

    def _asked_to_show(self, status: RankStatus) -> RankStatus:
        """The status with the stack of a stopped process, which can write it only while it runs."""
        if status.state != "stopped" or status.machine != self._machine or not self._ends_run:
            return status
        with suppress(OSError):
            ask_for_stack(status)
            continue_process(status.pid)
            time.sleep(_WRITES_STACK_S)
            # so that it does no step of its own before it reads the verdict
            os.kill(status.pid, signal.SIGSTOP)
        return with_written_stack(status)

    def _name(self) -> str:
        return f"{VERDICT}/{self._num_verdicts}"


class StandstillWarnings:
    """Writes the texts about the standstills of a run. A warning and the error after it share a
    file of stacks.
    """

    def __init__(self, options: WatchdogOptions) -> None:
        self._options, self._stacks_path = options, ""
        self._has_warned = self._has_noted = False

    def warn(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> None:
        """Warn on stderr that the ranks stand still, once until they make progress; of imports in
        one line, once.
        """
        if all(each.is_loading for each in statuses if each.rank in verdict.absent):
            if not self._has_noted:
                _write(
                    f"No progress yet, as a rank imports or compiles: {verdict.reason}. The run "
                    "goes on."
                )
            self._has_noted = True
            return
        if self._has_warned:
            return
        self._has_warned = True
        text = f"{self._describe(verdict, statuses)}The run goes on."
        if self._options.ends_run:
            end_after = max(self._options.end_after, self._options.limit)
            text += (
                f" It ends if this lasts for {end_after}, or ten times that where a rank is at "
                "work: WatchdogOptions(end_after=...)."
            )
        _write(text)

    def clear(self, stood_s: float) -> None:
        """Write that the ranks make progress again, if there was a warning."""
        if self._has_warned:
            _write(f"The ranks make progress again, after {stood_s:.0f} s.")
        self._has_warned, self._stacks_path = False, ""

    def error(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> HangError:
        """The error that ends the run; its first line is on stderr already."""
        message = self._describe(verdict, statuses)
        message += (
            "If this was merely slow, allow more: "
            "watch=WatchdogOptions(end_after=timedelta(minutes=30)), or CORE_WATCH=1800; "
            "CORE_WATCH=report lets the run go on, CORE_WATCH=off looks at nothing."
        )
        ranks = [each.location() for each in statuses]
        error = HangError(
            message, absent=verdict.absent, ranks=ranks, stacks_path=self._stacks_path
        )
        if self._options.ends_run:  # its error says the rest
            message = message.partition("\n")[0]
        _write(message)
        return error

    def _describe(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> str:
        """The state of all ranks, and the file with their stacks."""
        stood_s = min((each.since_s for each in statuses if not each.is_lost), default=0.0)
        stood = f"The ranks have made no progress for {stood_s:.0f} s."
        message = f"{stood} {verdict.reason[:1].upper()}{verdict.reason[1:]}.\n{table(statuses)}\n"
        self._write_stacks(message, statuses)
        if self._stacks_path:
            message += f"All stacks: {self._stacks_path}\n"
        return message

    def _write_stacks(self, message: str, statuses: Sequence[RankStatus]) -> None:
        folder = Path(self._options.folder or tempfile.gettempdir())
        stacks = "".join(
            f"\nrank {each.rank} on {each.host}, process {each.pid}, {each.state}:\n{each.stack}"
            for each in statuses
        )
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = self._stacks_path
            if not path:
                # by a name that no other user of the machine could have taken before
                begin = f"core-hang-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-"
                descriptor, path = tempfile.mkstemp(".txt", begin, folder)
                os.close(descriptor)
            Path(path).write_text(message + stacks, encoding="utf-8", errors="backslashreplace")
            self._stacks_path = path


def _write(text: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # no such stream any more
        sys.stderr.write(f"core: {text}\n")
        sys.stderr.flush()
