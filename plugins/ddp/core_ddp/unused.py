"""Parameters that a loss doesn't depend on: torch's error in words of this package, and its
advice.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from core import ModuleError
from core_ddp.late import IN_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from core_ddp.late import WrappedParameters

_SYMPTOM = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


def explain_unused(
    step: Callable[..., Any], wrapped: WrappedParameters | None
) -> Callable[..., Any]:
    """The step, with an error of ours where the one before it has left gradients out.

    Args:
        step: is called.
        wrapped: the parameters of the module; None for those of a wrapper that isn't known.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except RuntimeError as error:
            if _SYMPTOM not in str(error):
                raise
            raise ModuleError(_explanation(wrapped, str(error))) from error

    return call


def _explanation(wrapped: WrappedParameters | None, message: str) -> str:
    left_out = _left_out(wrapped, message)
    for fate in ("replaced", "frozen"):
        if wrapped and (
            names := [name for own, name in left_out.items() if wrapped.fate(own) == fate]
        ):
            return (
                f"{_shown(names)} was {fate} after DDP was set up, which waits for its "
                f"gradient. {IN_TIME}"
            )
    return (
        f"The loss does not depend on {_shown(left_out.values()) or 'some parameters'}, and DDP "
        "waits for gradients of all parameters. Let the loss use them, freeze them "
        "(requires_grad_(False)) before fit, or pass strategy='ddp_find_unused_parameters_true', "
        "which searches for them in every step."
    )


def _left_out(wrapped: WrappedParameters | None, message: str) -> dict[Tensor, str]:
    """The parameters whose indices torch's message has, if any."""
    found = _INDICES.search(message)
    if found is None or wrapped is None:
        return {}
    named = list(wrapped.trained.items())
    return dict(named[index] for index in map(int, found[1].split()))


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def use_up_advice(device: torch.device) -> None:
    """All ranks. Trigger torch's advice against `find_unused_parameters=True` here, unseen: it
    comes once a process.

    Torch writes it to stderr itself. It is wrong where a strategy has chosen the option, for graphs
    that change.
    """
    parameter = nn.Parameter(torch.zeros(1, device=device))
    wrapper = DistributedDataParallel(nn.ParameterList([parameter]), find_unused_parameters=True)
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # nothing is shown in any case
        return
    os.dup2(nowhere, 2)
    try:
        wrapper.reducer.prepare_for_backward([parameter.clone()])
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
