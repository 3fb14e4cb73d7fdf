"""The report of why a worker ended, and the error that the main process makes of it."""

from __future__ import annotations

import contextlib
import signal
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from core.contract import HangError, RankLocation, WorkerError
from core.display.lost_connection import is_lost_connection
from core.display.tracebacks import ShortText, format_short

_MAX_CHARACTERS = 16_000
_MAX_RANKS = 64

_HINTS: dict[int, str] = {
    signal.SIGKILL: " (the kernel does that when memory runs out)",
    signal.SIGABRT: (
        " (native code gave up, and has written why to stderr; torch does that when ranks make "
        "different calls, as where only some of them call backward)"
    ),
}


class WorkerTraceback(ShortText):
    """A worker's traceback as text, as `concurrent.futures` shows it: it comes before the error
    that it causes.

    Args:
        text: the whole traceback.
        short_text: the one to show where the error ends the program.
    """

    def __init__(self, text: str, short_text: str) -> None:
        super().__init__(text, short_text)
        self.short_text = short_text

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The last message of a worker that ends by an exception; its fields are those of the message.

    Attributes:
        summary: type and message.
        traceback: as Python prints it, its end if it is very long.
        short_traceback: without the frames of core.
        is_echo: it lost the connection to a rank that had failed before, or got a message about it.
        hang: the parts of a `HangError`, which all ranks end with; None for another error.
    """

    summary: str
    traceback: str
    short_traceback: str
    is_echo: bool
    hang: dict[str, Any] | None = None

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        """The report of a worker that ends by `error`."""
        text = "".join(traceback.format_exception(error))
        short = format_short(error)
        hang = None
        if isinstance(error, HangError):
            hang = parts_of(error)
            hang["message"] = hang["message"][:_MAX_CHARACTERS]
            hang |= {name: hang[name][:_MAX_RANKS] for name in ("absent", "ranks")}
        return cls(
            summarize(error),
            text[-_MAX_CHARACTERS:],
            short[-_MAX_CHARACTERS:],
            is_lost_connection(error),
            hang,
        )


def summarize(error: BaseException) -> str:
    """`"ValueError: no such file"`, cut if it is very long."""
    return "".join(traceback.format_exception_only(error)).strip()[-_MAX_CHARACTERS // 8 :]


def describe_exit(exit_code: int) -> str:
    """`"was killed by SIGKILL"`, or `"exited with code 3"`."""
    if exit_code < 0:
        name = f"signal {-exit_code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-exit_code).name
        return f"was killed by {name}{_HINTS.get(-exit_code, '')}"
    return f"exited with code {exit_code}"


def left_early(rank: int, num_begun: int, num_done: int, num_needed: int) -> WorkerError:
    """The error that names a rank which has ended with code 0 while others needed it, and what it
    left undone.
    """
    if num_done < num_begun:
        what = f"in the middle of launch {num_begun}"
    elif num_begun < num_needed:
        what = f"without coming to launch {num_needed}"
    else:
        what = f"after launch {num_done}"
    return WorkerError(
        f"Rank {rank} exited with code 0 {what}, and the other ranks still needed it. All ranks "
        "must make the same calls: look for a sys.exit, an os._exit or a return that only some of "
        "them come to.",
        rank=rank,
        exit_code=0,
    )


def worker_error(
    rank: int, exit_code: int, report: WorkerFailure | None, *, where: str = ""
) -> WorkerError:
    """The error that names the worker which failed first; its traceback is the cause, and so is
    shown first.

    Args:
        rank: its global rank.
        exit_code: as the operating system reports it; negative for a signal.
        report: what it said as it ended; None if it couldn't.
        where: it ran, for the message, such as `"on node 10.0.0.2"`.
    """
    name = f"Rank {rank} {where}".strip()
    if report is not None and report.hang is not None:
        return hang_of(report.hang)
    if report is None:
        return WorkerError(f"{name} {describe_exit(exit_code)}.", rank=rank, exit_code=exit_code)
    error = WorkerError(
        f"{name} failed with {report.summary}",
        rank=rank,
        exit_code=exit_code,
        worker_traceback=report.traceback,
    )
    error.__cause__ = WorkerTraceback(report.traceback, report.short_traceback)
    return error


def parts_of(error: HangError) -> dict[str, Any]:
    """Plain values of which `hang_of` makes the same error in another process."""
    return {
        "message": str(error),
        "absent": error.absent,
        "ranks": [asdict(each) for each in error.ranks],
        "stacks_path": error.stacks_path,
    }


def hang_of(parts: dict[str, Any]) -> HangError:
    """The error of which these are the parts."""
    ranks = [RankLocation(**each) for each in parts["ranks"]]
    return HangError(**parts | {"ranks": ranks})
