"""Why a process ended: what a worker can still say about it, and the error that the main process makes of it."""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from core.contract import WorkerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_CHARACTERS = 16_000
_LOST_CONNECTION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket (closed|timeout)|timed out waiting", re.IGNORECASE
)


class WorkerTraceback(Exception):
    """A worker's traceback as text, as `concurrent.futures` shows it: it comes before the error that it causes."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says as it ends by an exception.

    Attributes:
        summary: type and message.
        traceback: as Python prints it, its end if it is very long.
        is_echo: it lost the connection to a rank that had failed before, or was told so.
    """

    summary: str
    traceback: str
    is_echo: bool

    @classmethod
    def of(cls, error: BaseException) -> Report:
        """The report of a worker that ends by `error`."""
        text = "".join(traceback.format_exception(error))
        return cls(summarize(error), text[-_MAX_CHARACTERS:], is_echo(error))

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Report:
        """Read what `to_message` wrote."""
        return cls(**message)

    def to_message(self) -> dict[str, Any]:
        """A form for the channel."""
        return asdict(self)


def summarize(error: BaseException) -> str:
    """`"ValueError: no such file"`, cut if it is very long."""
    return "".join(traceback.format_exception_only(error)).strip()[-_MAX_CHARACTERS // 8 :]


def is_echo(error: BaseException) -> bool:
    """Whether the error says no more than that another rank is gone."""
    if isinstance(error, WorkerError | ConnectionError):
        return True
    if isinstance(error, RuntimeError) and _LOST_CONNECTION.search(str(error)):
        return True  # torch's DistError and its subclasses are RuntimeErrors
    return error.__cause__ is not None and is_echo(error.__cause__)


def describe_exit(exit_code: int) -> str:
    """`"was killed by SIGKILL"`, or `"exited with code 3"`."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
        hint = " (the kernel does that when memory runs out)" if exit_code == -signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    return f"exited with code {exit_code}"


def worker_error(rank: int, exit_code: int, report: Report | None) -> WorkerError:
    """The error that names the worker which failed first; its traceback is the cause, and so is shown first."""
    if report is None:
        return WorkerError(f"Rank {rank} {describe_exit(exit_code)}.", rank=rank, exit_code=exit_code)
    error = WorkerError(
        f"Rank {rank} failed with {report.summary}", rank=rank, exit_code=exit_code, worker_traceback=report.traceback
    )
    error.__cause__ = WorkerTraceback(report.traceback)
    return error
