"""Translation of torch's error about parameters that a loss doesn't depend on into words of this package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_SYMPTOM = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


def explain_unused(step: Callable[..., Any], wrapper: nn.Module) -> Callable[..., Any]:
    """The step, with an error of ours where the one before it has left gradients out."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except RuntimeError as error:
            if _SYMPTOM not in str(error):
                raise
            raise ModuleError(
                f"The loss does not depend on {_names(wrapper, str(error))}, and DDP waits for gradients of all "
                "parameters. Let the loss use them, freeze them (requires_grad_(False)) before fit, or pass "
                "strategy='ddp_find_unused_parameters_true', which searches for them in every step."
            ) from error

    return call


def _names(wrapper: nn.Module, message: str) -> str:
    """The parameters whose indices torch tells, if it does."""
    found = _INDICES.search(message)
    if found is None or not isinstance(wrapper, DistributedDataParallel):
        return "some parameters"
    ignored = wrapper.parameters_to_ignore
    own = wrapper.module.named_parameters()
    # torch counts the parameters that it averages: those that require gradients and aren't ignored, in their order.
    names = [name.removeprefix("module.") for name, p in own if p.requires_grad and name not in ignored]
    return ", ".join(repr(names[index]) for index in map(int, found[1].split()))
