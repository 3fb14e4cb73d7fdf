"""Models and optimizers that FairScale would train wrongly, or fail with in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

_INSTEAD = "Use strategy='ddp', which can."


def refuse(module: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Refuse a module or optimizers.

    Raises:
        ConfigurationError: with the reason.
    """
    _refuse_module(module)
    _refuse_optimizers(optimizers)


def _refuse_module(module: nn.Module) -> None:
    """Refuse parameters that FairScale can't put into one buffer, or whose gradients it can't send."""
    dtypes = {own.dtype: name for name, own in module.named_parameters() if own.requires_grad}
    if len(dtypes) > 1:
        listed = ", ".join(f"{name!r} is {str(dtype).removeprefix('torch.')}" for dtype, name in dtypes.items())
        raise ConfigurationError(
            f"FairScale keeps the parameters of a rank in one buffer of one dtype, and {type(module).__name__} has "
            f"several: {listed}. Convert the module to one dtype. {_INSTEAD}"
        )
    if any(dtype.is_complex for dtype in dtypes):
        raise ConfigurationError(f"FairScale can't send gradients of complex parameters. {_INSTEAD}")
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ConfigurationError(
                f"FairScale can't send sparse gradients, and {name!r} has sparse=True. Make it without. {_INSTEAD}"
            )


def _refuse_optimizers(optimizers: Iterable[Optimizer]) -> None:
    """Refuse LBFGS, which looks at all parameters at once: ranks would search along lines of different lengths."""
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                "LBFGS needs all parameters in one place, and FairScale gives each rank a part of them. " + _INSTEAD
            )
