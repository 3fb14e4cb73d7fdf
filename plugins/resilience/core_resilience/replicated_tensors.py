"""The tensors that ranks with replicated parameters must have alike, by names for people."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from torch import Tensor

from core.session import running_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer


def replicated_tensors(
    module: nn.Module, optimizers: Sequence[Optimizer], ignore: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and what optimizers keep, in an order that all ranks share.

    Running statistics of batch norms aren't among them: they follow each rank's own batches, unless
    a SyncBatchNorm keeps them.

    Args:
        module: the user's own.
        optimizers: of its parameters.
        ignore: patterns of names of parameters and buffers that are left out.
    """
    names = {
        parameter: name for name, parameter in module.named_parameters() if not _fits(name, ignore)
    }
    yield from ((f"the parameter {name!r}", parameter) for parameter, name in names.items())
    own = set(running_statistics(module))
    for name, buffer in module.named_buffers():
        if name not in own and not _fits(name, ignore):
            yield f"the buffer {name!r}", buffer
    for optimizer in optimizers:
        for parameter in (
            each for group in optimizer.param_groups for each in group["params"] if each in names
        ):
            state = optimizer.state.get(parameter, {})
            for key in sorted(state, key=str):
                if isinstance(state[key], Tensor):
                    yield (
                        f"{key!r} of {type(optimizer).__name__} for {names[parameter]!r}",
                        state[key],
                    )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
