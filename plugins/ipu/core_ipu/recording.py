"""The values that a user's step logs while it is traced: outputs of the program, logged after each
call.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from core import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class Logged(NamedTuple):
    """One call of `log`: its name and options, and a constant value; None for one that the program
    returns.
    """

    name: str
    constant: Any
    options: dict[str, Any]


@contextmanager
def recorded(module: nn.Module) -> Iterator[tuple[list[Logged], list[torch.Tensor]]]:
    """Within it the module's `log` fills two lists: all calls, and the values that are tensors."""
    calls: list[Logged] = []
    tensors: list[torch.Tensor] = []
    if not callable(getattr(type(module), "log", None)):
        yield calls, tensors
        return

    def log(name: str, value: Any, *options: Any, **named: Any) -> None:
        if isinstance(value, torch.nn.Module):
            raise UnsupportedError(
                f"self.log({name!r}, ...) got a {type(value).__name__}, which keeps values of its "
                "own, and the step is a compiled program. Log the numbers, or update it in "
                "on_train_batch_end from what the step returns."
            )
        given = {**dict(zip(_OPTIONS, options, strict=False)), **named}
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:
            tensors.append(value.detach().reshape(()))
        calls.append(Logged(name, None if is_tensor else value, given))

    vars(module)["log"] = log
    try:
        yield calls, tensors
    finally:
        del vars(module)["log"]


_OPTIONS = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "sync_dist",
    "batch_size",
    "add_dataloader_idx",
    "rank_zero_only",
)


def replay(module: Any, calls: list[Logged], values: list[torch.Tensor]) -> None:
    """Log what one call of the program has returned.

    Args:
        module: with `log`.
        calls: in the order of the trace.
        values: of those that are tensors, one of shape () or (n,) each, for n micro-batches.
    """
    rest = iter(values)
    for call in calls:
        value = next(rest) if call.constant is None else call.constant
        number = value.numel() if isinstance(value, torch.Tensor) else 1
        options = dict(call.options)
        if options.get("batch_size") is not None:
            options["batch_size"] = options["batch_size"] * number
        if number > 1:
            value = _reduce(call.name, value, options.get("reduce_fx", "mean"))
        module.log(call.name, value, **options)


def _reduce(name: str, values: torch.Tensor, reduce_fx: Any) -> torch.Tensor:
    reduction = _REDUCTIONS.get(getattr(reduce_fx, "__name__", reduce_fx))
    if reduction is None:
        raise UnsupportedError(
            f"self.log({name!r}, reduce_fx={reduce_fx!r}): a compiled step returns values of "
            f"several micro-batches, which are joined by one of {', '.join(_REDUCTIONS)}."
        )
    return reduction(
        values if values.is_floating_point() or reduction is not torch.mean else values.float()
    )
