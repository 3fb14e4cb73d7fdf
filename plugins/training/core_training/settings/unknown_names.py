"""The answer to an argument that a Trainer doesn't have."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from core.contract import ConfigurationError, did_you_mean
from core.display import install_for

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")
_HELP = "See help(Trainer); docs/coming-from-lightning.md says what other trainers' names are here."


def answers_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap an `__init__`, so that an argument that it doesn't take is answered by the one that it
    may mean.
    """
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                answer = did_you_mean(name, names, cutoff=0.8).strip() or _HELP
                error = ConfigurationError(f"Trainer has no argument {name!r}. {answer}")
                install_for(error)  # shown at the user's own line, as all errors of a Trainer
                raise error
        return function(*args, **kwargs)

    return call
