"""A wrapper that is no DistributedDataParallel: gradients are exchanged when backward is over."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


class FlatDDP(nn.Module):
    """Averages all gradients of a module in one all-reduce a dtype, at the end of each backward.

    A gradient that is missing has to be missing on all ranks.
    """

    def __init__(self, module: nn.Module, average: Callable[[Tensor], Tensor]) -> None:
        """Wrap a module.

        Args:
            module: of the same weights on all ranks.
            average: the mean of a tensor over all ranks.
        """
        super().__init__()
        self.module = module
        self._average = average
        self._syncs = True
        self._is_queued = False
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in trainable]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local until the next backward outside of this context, which averages their sum."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def remove(self) -> None:
        """Leave the module as it was."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, parameter: Tensor) -> None:
        if self._syncs and not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._exchange)

    def _exchange(self) -> None:
        """A gradient that was averaged before doesn't change when it is averaged again."""
        self._is_queued = False
        groups: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                groups[parameter.grad.dtype].append(parameter.grad)
        for gradients in groups.values():
            flat = self._average(torch.cat([gradient.flatten() for gradient in gradients]))
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
