"""Errors that come through one of torch's schedules."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which torch doesn't log the whole schedule beside an error."""
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    # setLevel clears the caches of all loggers, which takes milliseconds
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def first_cause(error: BaseException) -> BaseException:
    """The error that was raised in a stage: torch wraps it, with all arguments in its text."""
    cause = error.__cause__
    if type(error) is not RuntimeError or cause is None or cause is error:
        return error
    return first_cause(cause)
