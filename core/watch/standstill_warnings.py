"""The texts about a standstill: the warning, the error that ends the run, and the file with all stacks."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.contract import HangError
from core.watch.verdict import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.watch.options import WatchdogOptions
    from core.watch.rank_status import RankStatus
    from core.watch.verdict import Verdict


class StandstillWarnings:
    """Writes the texts about the standstills of a run. A warning and the error after it share a file of stacks."""

    def __init__(self, options: WatchdogOptions) -> None:
        self._options, self._stacks_path = options, ""
        self._has_warned = self._has_noted = False

    def warn(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> None:
        """Warn on stderr that the ranks stand still, once until they make progress; of imports in one line, once."""
        if all(each.is_loading for each in statuses if each.rank in verdict.absent):
            if not self._has_noted:
                _write(f"No progress yet, as a rank imports or compiles: {verdict.reason}. The run goes on.")
            self._has_noted = True
            return
        if self._has_warned:
            return
        self._has_warned = True
        if self._options.ends_run:
            end_after = max(self._options.end_after, self._options.limit)
            what_comes = (
                f"The run goes on. It ends if this lasts for {end_after}, or ten times that where a rank is at "
            )
            what_comes += "work: WatchdogOptions(end_after=...)."
        else:
            what_comes = "The run goes on."
        _write(f"{self._describe(verdict, statuses)}{what_comes}")

    def clear(self, stood_s: float) -> None:
        """Write that the ranks make progress again, if there was a warning."""
        if self._has_warned:
            _write(f"The ranks make progress again, after {stood_s:.0f} s.")
        self._has_warned, self._stacks_path = False, ""

    def error(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> HangError:
        """The error that ends the run; its first line is on stderr already."""
        message = self._describe(verdict, statuses)
        message += (
            "If this was merely slow, allow more: watch=WatchdogOptions(end_after=timedelta(minutes=30)), or "
            "CORE_WATCH=1800; CORE_WATCH=report lets the run go on, CORE_WATCH=off looks at nothing."
        )
        ranks = [each.location() for each in statuses]
        error = HangError(message, absent=verdict.absent, ranks=ranks, stacks_path=self._stacks_path)
        # Where the run ends, its error says the rest.
        _write(message.partition("\n")[0] if self._options.ends_run else message)
        return error

    def _describe(self, verdict: Verdict, statuses: Sequence[RankStatus]) -> str:
        """The state of all ranks, and the file with their stacks."""
        stood_s = min((each.since_s for each in statuses if not each.is_lost), default=0.0)
        stood = f"The ranks have made no progress for {stood_s:.0f} s."
        message = f"{stood} {verdict.reason[:1].upper()}{verdict.reason[1:]}.\n{table(statuses)}\n"
        self._write_stacks(message, statuses)
        return message + (f"All stacks: {self._stacks_path}\n" if self._stacks_path else "")

    def _write_stacks(self, message: str, statuses: Sequence[RankStatus]) -> None:
        folder = Path(self._options.folder or tempfile.gettempdir())
        stacks = "".join(
            f"\nrank {each.rank} on {each.host}, process {each.pid}, {each.state}:\n{each.stack}" for each in statuses
        )
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = self._stacks_path or _new_file(folder)
            Path(path).write_text(message + stacks, encoding="utf-8", errors="backslashreplace")
            self._stacks_path = path


def _new_file(folder: Path) -> str:
    """A file for stacks, by a name that no other user of the machine could have taken before."""
    begin = f"core-hang-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-"
    descriptor, path = tempfile.mkstemp(".txt", begin, folder)
    os.close(descriptor)
    return path


def _write(text: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # no such stream any more
        sys.stderr.write(f"core: {text}\n")
        sys.stderr.flush()
