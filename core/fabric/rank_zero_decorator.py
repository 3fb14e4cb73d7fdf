"""Functions that only rank 0 runs, for code that is imported before there is a Fabric or a
Trainer.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from core.launch import known_rank

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK")


class _RankZeroOnly:
    """A decorator: the function runs on rank 0, and returns a default on all other ranks."""

    @property
    def rank(self) -> int:
        """The rank of this process: of the process group, of the launcher, of the scheduler's
        variables, or else 0.
        """
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        rank = known_rank()
        if rank is not None:
            return rank
        for name in _VARIABLES:
            text = os.environ.get(name, "").strip()
            if text.isdigit():
                return int(text)
        return 0

    def __call__(self, function: Callable[P, R], default: object = None) -> Callable[P, R | Any]:
        """Wrap a function.

        Args:
            function: runs on rank 0. The rank is asked for at each call.
            default: what the others return.
        """

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | Any:
            if self.rank != 0:
                return default
            return function(*args, **kwargs)

        return run


rank_zero_only = _RankZeroOnly()
"""The decorator `@rank_zero_only`. `rank_zero_only.rank` is the rank of this process."""


@rank_zero_only
def rank_zero_info(message: object, *args: object) -> None:
    """Rank 0. Log a message to the logger `core`; the level INFO has to be switched on, as
    `logging.basicConfig` does.

    Args:
        message: with `%s` for `args`.
        args: put into the message.
    """
    logging.getLogger("core").info(message, *args, stacklevel=3)


@rank_zero_only
def rank_zero_warn(
    message: Warning | str, category: type[Warning] = UserWarning, stacklevel: int = 1
) -> None:
    """Rank 0. Warn, at the caller's line.

    Args:
        message: the warning.
        category: of the warning.
        stacklevel: 1 for the line that calls this, 2 for its caller.
    """
    warnings.warn(message, category, stacklevel=stacklevel + 2)
