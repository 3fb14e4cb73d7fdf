"""Errors that only follow from the end of another rank, which has an error of its own."""

from __future__ import annotations

import re

from core.contract.errors import HangError, WorkerError

CAUSE_S = 2.0
"""Seconds to look for the cause where a rank reports no more than a lost connection."""
OF_ANOTHER = "If another rank has ended first, its own error, above or in its log, is the cause.\n"
"""The line below such an error."""
_LOST_CONNECTION = re.compile(
    r"gloo|nccl|monitoredbarrier|connection.* (closed|reset|refused)|broken pipe|"
    r"socket (closed|timeout)|timed out waiting",
    re.I,
)


def is_lost_connection(error: BaseException) -> bool:
    """True if the error says only that the connection to another rank is lost."""
    if isinstance(error, HangError):
        return False
    if isinstance(error, WorkerError | ConnectionError):
        return True
    if isinstance(error, RuntimeError) and _LOST_CONNECTION.search(str(error)):
        return True  # torch's DistError and its subclasses are RuntimeErrors
    # The user's own error that was raised from a lost connection counts too.
    cause = error.__cause__
    return cause is not None and cause is not error and is_lost_connection(cause)
