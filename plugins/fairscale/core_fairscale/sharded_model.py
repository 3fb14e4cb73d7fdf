"""FairScale's wrapper around a model, whose gradients go to the ranks that own the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from core_fairscale.sharded_optimizer import ShardedOptimizer

_MOST_NAMED = 8


class ShardedModel(ShardedDataParallel):  # type: ignore[misc]  # FairScale has no types
    """Averages gradients when a backward has ended, each on the rank that owns the parameter;
    elsewhere it is None.

    FairScale does it while backward runs, in the order in which gradients come, and once between
    two forwards. That is wrong without a word after `optimizer.zero_grad()` (the gradients leave
    the buckets that are sent), in a second backward of one step, where gradients are added to
    averaged ones, in `eval()`, and where ranks differ in what they use. Here `finish_backward` does
    it, in an order that all ranks share, by the same functions of FairScale.

    Args:
        module: the model, on its device, the same on all ranks.
        optimizers: of its parameters.
        names: of the parameters.
        find_unused: a parameter without a gradient on some ranks counts there as one whose gradient
            is zero.
        broadcast_buffers: the buffers of rank 0 go to all, before each step's forward.
    """

    reduce_buffer_size = 0  # FairScale's buckets would lose gradients that are None in between

    def __init__(
        self,
        module: nn.Module,
        optimizers: list[ShardedOptimizer],
        names: Mapping[Tensor, str],
        *,
        find_unused: bool,
        broadcast_buffers: bool,
    ) -> None:
        super().__init__(
            module,
            optimizers,
            sync_models_at_startup=False,
            reduce_buffer_size=self.reduce_buffer_size,
            broadcast_buffers=broadcast_buffers,
        )
        self._names, self._finds_unused = names, find_unused
        # gradients that are averages already, by parameter
        self._averaged: dict[Tensor, Tensor] = {}
        self._aside: dict[Tensor, Tensor] = {}
        self._buffers_may_differ = broadcast_buffers
        self.is_accumulating = False
        # for FairScale's own hooks: `finish_backward` comes later
        self._should_accumulate_grads = True

    def train(self, mode: bool = True) -> ShardedModel:
        """Set the mode of the model. The wrapper itself always trains: FairScale takes its hooks
        away in `eval()`.
        """
        super().train(mode)
        self.training = True
        return self

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model; the buffers of rank 0 come first, once in an accumulation window."""
        if self._buffers_may_differ:
            self.sync_buffers(blocking=True)
        self._buffers_may_differ = self._enable_broadcast_buffers and not self.is_accumulating
        return super().forward(*inputs, **kwargs)

    def prepare_backward(self) -> None:
        """Set averages of earlier backwards aside, which only their owners have, so that they count
        once.
        """
        self._aside = {
            one: average for one, average in self._averaged.items() if one.grad is average
        }
        self._averaged = {}
        for parameter in self._aside:
            parameter.grad = None

    @torch.no_grad()
    def finish_backward(self) -> None:
        """All ranks. Average the new gradients, unless they accumulate, and add them to the earlier
        averages.

        Raises:
            ModuleError: on all ranks, some have a gradient of a parameter, and others haven't.
        """
        if self.is_accumulating:
            self._add_to_accumulated()
            return
        self._reduce_gradients()
        for parameter, average in self._aside.items():
            parameter.grad = average if parameter.grad is None else parameter.grad.add_(average)
        self._averaged = {one: one.grad for one in self._trainable_params if one.grad is not None}

    def _add_to_accumulated(self) -> None:
        # What has been averaged will be summed over ranks and divided again, with what is new.
        size = dist.get_world_size(self._process_group)
        for parameter, average in self._aside.items():
            if parameter.grad is None:
                parameter.grad = self._averaged[parameter] = average
            else:
                parameter.grad.add_(average, alpha=size)

    def _reduce_gradients(self) -> None:
        used = self._agree_on_used()
        for parameter, is_used in zip(self._trainable_params, used, strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._grad_to_be_reduced, self._should_accumulate_grads = used, False
        try:
            if any(used):
                self.reduce()
        finally:
            self._should_accumulate_grads = True

    def _agree_on_used(self) -> list[bool]:
        """Of each trainable parameter, whether any rank has a gradient."""
        used = torch.tensor(
            [one.requires_grad and one.grad is not None for one in self._all_params]
        ).int()
        counts = used.to(self._all_params[0].device)
        dist.all_reduce(counts, group=self._process_group)
        size = dist.get_world_size(self._process_group)
        differing = [
            one
            for one, count in zip(self._all_params, counts.tolist(), strict=True)
            if 0 < count < size
        ]
        if differing and not self._finds_unused:
            raise ModuleError(self._differences(differing))
        used_anywhere = dict(zip(self._all_params, (counts > 0).tolist(), strict=True))
        return [used_anywhere[parameter] for parameter in self._trainable_params]

    def _differences(self, differing: list[Tensor]) -> str:
        num_missing = sum(one.grad is None for one in differing)
        named = ", ".join(map(repr, sorted(self._names[one] for one in differing)[:_MOST_NAMED]))
        more = f" and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
        here = (
            "has no gradient of any"
            if num_missing == len(differing)
            else f"lacks the gradients of {num_missing}"
        )
        return (
            f"On some ranks the loss depends on {named}{more}, and on others it doesn't; this one "
            f"{here}. Let the loss depend on the same parameters everywhere, or pass "
            "strategy='ddp_sharded_find_unused_parameters_true', where a missing gradient counts "
            "as zero."
        )
