"""All ranks begin with the weights of rank 0, also those that DeepSpeed doesn't send."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

_LEFT_ALONE = "ds_optim_param"
"""The attribute of parameters that DeepSpeed doesn't send."""


@contextmanager
def same_on_all_ranks(module: nn.Module, broadcast: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """All ranks. A context to make an engine in, which sends parameters from rank 0, as far as
    DeepSpeed 0.19 can.

    DeepSpeed doesn't send buffers, and fails on scalars and on tensors that aren't contiguous, such
    as those in `channels_last`. The latter format is lost when parameters are laid out.

    Args:
        module: of the engine.
        broadcast: gives rank 0's tensor on all ranks.
    """
    parameters = [parameter for parameter in module.parameters() if not hasattr(parameter, "ds_id")]
    for parameter in parameters:
        parameter.data = parameter.data.contiguous()
    scalars = [parameter for parameter in parameters if not parameter.dim()]
    for tensor in (*module.buffers(), *scalars):
        tensor.data.copy_(broadcast(tensor.data))
    for parameter in scalars:
        setattr(parameter, _LEFT_ALONE, True)
    try:
        yield
    finally:
        for parameter in scalars:
            delattr(parameter, _LEFT_ALONE)
