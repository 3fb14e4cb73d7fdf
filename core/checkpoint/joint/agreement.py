"""Agreement on errors: what fails on one rank is raised on all of them, so that no rank waits for
ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import Collectives

T = TypeVar("T")


def together(collectives: Collectives, work: Callable[[], T]) -> T:
    """The result of `work`, once it has succeeded on all ranks."""
    result, error = _attempt(work)
    # One vote, where ranks can vote. What has failed is sent only if something has.
    agree = getattr(collectives, "agree", None)
    if agree is None or not agree(error is None):
        _share(collectives, error, None)
    return result  # type: ignore[return-value]  # there was no error


def gather_results(collectives: Collectives, work: Callable[[], T]) -> tuple[T, list[T]]:
    """The own result of `work`, and on rank 0 those of all ranks, once it has succeeded on all of
    them.

    Args:
        collectives: the ranks that call this together.
        work: whose result is picklable and small.
    """
    result, error = _attempt(work)
    return result, _share(collectives, error, result)  # type: ignore[return-value]  # there was no error


def _share(collectives: Collectives, error: Exception | None, result: object) -> list[object]:
    """On rank 0 the results of all ranks.

    Raises:
        Exception: that of this rank, or the first one of another rank.
    """
    # Two messages, whatever has failed where: outcomes to rank 0, and the first failure back to
    # all.
    gathered = collectives.gather_objects((_report(error), result if error is None else None))
    failed = [(rank, *report) for rank, (report, _) in enumerate(gathered or []) if report]
    first = collectives.broadcast_object(failed[0] if failed else None)
    # The own error before that of another rank: it has a traceback.
    if error is not None:
        raise error
    if first is not None:
        raise _from_rank(*first)
    return [other for _, other in gathered or []]


def on_rank_zero(collectives: Collectives, work: Callable[[], T]) -> T:
    """On all ranks the result of `work`, which rank 0 alone does."""
    result, error = _attempt(work) if collectives.rank == 0 else (None, None)
    report, result = collectives.broadcast_object(
        (_report(error), result if error is None else None)
    )
    if error is not None:
        raise error
    if report is not None:
        raise _from_rank(0, *report)
    return result  # type: ignore[no-any-return]


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _report(error: Exception | None) -> tuple[type[Exception], str] | None:
    return None if error is None else (type(error), str(error))


def _from_rank(rank: int, kind: type[Exception], message: str) -> Exception:
    return (kind if issubclass(kind, CheckpointError) else CheckpointError)(
        f"On rank {rank}: {message}"
    )
