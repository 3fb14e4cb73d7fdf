"""The load of experts as a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import Callback
from core_parallel.experts import expert_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle


class ExpertLoad(Callback):
    """Logs how many of a router's choices go to each expert, over all ranks, on any strategy.

    For each module of experts `expert_load/NAME/0`, ... are shares, which add up to 1.
    `expert_load/NAME/max_violation` is the largest over the mean, less 1: 0 is a balanced load
    (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024).
    Counted in training, from one log to the next, every `log_every_n_steps`.
    """

    def __init__(
        self, expert_plan: Sequence[str] | Mapping[str, Any] | None = None, *, each: bool = True
    ) -> None:
        """Create the callback.

        Args:
            expert_plan: names of the modules of experts; see `MeshParallelStrategy`.
            each: log each expert's share too.
        """
        self._plan, self._each = expert_plan, each
        self._counts: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Begin to count."""
        self._counts.clear()
        for one in expert_modules.find(module, self._plan):
            # On every rank, also of another stage: they add them up together.
            self._counts[one.name] = torch.zeros(
                one.count, dtype=torch.long, device=trainer.strategy.root_device
            )
            # Before the hook that brings tokens to other ranks.
            hook = one.module.register_forward_pre_hook(
                self._counting(one), prepend=True, with_kwargs=True
            )
            self._hooks.append(hook)

    def _counting(self, found: expert_modules.ExpertModule) -> Callable[..., None]:
        name, count = found.name, found.count

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module.training and torch.is_grad_enabled():
                numbers = [*args, *kwargs.values()][1].flatten()
                self._counts[name] += torch.bincount(numbers.clamp(max=count), minlength=count + 1)[
                    :count
                ]

        return hook

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if the metrics of this step are logged."""
        if trainer.global_step % trainer.options.log_every_n_steps:
            return
        for name, counts in self._counts.items():
            load = trainer.strategy.reduce(counts, reduce_op="sum").double()
            counts.zero_()
            if not load.sum():
                continue
            shares = load / load.sum()
            values = {"max_violation": shares.max() * len(shares) - 1}
            if self._each:
                values |= {str(number): share for number, share in enumerate(shares)}
            for key, value in values.items():
                module.log(f"expert_load/{name}/{key}", value, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """Count no longer."""
        while self._hooks:
            self._hooks.pop().remove()

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """Count no longer."""
        self.on_train_end(trainer, module)
