"""Agreement on errors: what fails on one rank is raised on all of them, so that no rank waits for
ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import Collectives

    Failure = tuple[int, type[Exception], str]
    """A rank, and the type and the message of its error."""

T = TypeVar("T")


def together(collectives: Collectives, work: Callable[[], T]) -> T:
    """The result of `work`, once it has succeeded on all ranks."""
    result, error = _attempt(work)
    # One vote, where ranks can vote. What has failed is sent only if something has.
    agree = getattr(collectives, "agree", None)
    if agree is None or not agree(error is None):
        _share(collectives, error, None)
    return result  # type: ignore[return-value]  # there was no error


def gather_results(collectives: Collectives, work: Callable[[], T]) -> list[T]:
    """On rank 0 the results of `work` of all ranks, once it has succeeded on all of them.

    Args:
        collectives: the ranks that call this together.
        work: whose result is picklable and small.
    """
    result, error = _attempt(work)
    return _share(collectives, error, result)


def on_rank_zero(collectives: Collectives, work: Callable[[], T]) -> T:
    """On all ranks the result of `work`, which rank 0 alone does."""
    result, error = None, None
    if collectives.rank == 0:
        result, error = _attempt(work)
    failure, result = collectives.broadcast_object((_failure(0, error), result))
    _raise(error, failure)
    return result  # type: ignore[no-any-return]


def _share(collectives: Collectives, error: Exception | None, result: object) -> list[Any]:
    """On rank 0 the results of all ranks.

    Raises:
        Exception: that of this rank, or the first one of another rank.
    """
    # Two messages, whatever has failed where: outcomes to rank 0, and the first failure back to
    # all.
    gathered = collectives.gather_objects((_failure(collectives.rank, error), result)) or []
    failures = [failure for failure, _ in gathered if failure is not None]
    _raise(error, collectives.broadcast_object(next(iter(failures), None)))
    return [other for _, other in gathered]


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _failure(rank: int, error: Exception | None) -> Failure | None:
    return None if error is None else (rank, type(error), str(error))


def _raise(error: Exception | None, failure: Failure | None) -> None:
    """Raise the own error, before that of another rank: it has a traceback."""
    if error is not None:
        raise error
    if failure is not None:
        rank, kind, message = failure
        if not issubclass(kind, CheckpointError):
            kind = CheckpointError
        raise kind(f"On rank {rank}: {message}")
