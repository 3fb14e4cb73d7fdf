"""Errors that come through one of torch's schedules."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def as_raised() -> Iterator[None]:
    """A context whose errors are those that were raised in a stage: torch logs the whole schedule
    beside one, and wraps it, with all arguments in its text.
    """
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    # setLevel clears the caches of all loggers, which takes milliseconds
    before, log.disabled = log.disabled, True
    try:
        yield
    except RuntimeError as error:
        cause = first_cause(error)
        if cause is error:
            raise
        raise cause from None
    finally:
        log.disabled = before


def first_cause(error: BaseException) -> BaseException:
    """The error that torch has wrapped."""
    cause = error.__cause__
    if type(error) is not RuntimeError or cause is None or cause is error:
        return error
    return first_cause(cause)
