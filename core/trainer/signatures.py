"""How many arguments does the user's method take? Asked once a stage, never in a step."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from core.contract import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable


def call_with(call: Callable[..., Any], method: Callable[..., Any], *, num_arguments: int) -> Callable[..., Any]:
    """`call` with as many of the given arguments as `method` takes.

    Args:
        call: runs the method, perhaps through a wrapper.
        method: the user's own, whose signature counts.
        num_arguments: what the caller has to give: (batch, batch_idx) or (batch, batch_idx, dataloader_idx).

    Raises:
        ModuleError: it takes none, or needs more.
    """
    kinds = [parameter.kind for parameter in inspect.signature(method).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return call
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    accepted = sum(kind in positional for kind in kinds)
    required = sum(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(method).parameters.values()
    )
    if accepted == 0 or required > num_arguments:
        names = ("batch", "batch_idx", "dataloader_idx")[:num_arguments]
        raise ModuleError(
            f"{method.__qualname__}{inspect.signature(method)} can't be called; it gets ({', '.join(names)}), "
            "of which those at the end may be left out."
        )
    if accepted >= num_arguments:
        return call
    if accepted == 1:
        return lambda batch, *_: call(batch)
    return lambda batch, batch_idx, *_: call(batch, batch_idx)
