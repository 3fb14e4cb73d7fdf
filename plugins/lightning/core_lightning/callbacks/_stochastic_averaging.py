"""Stochastic weight averaging as Lightning does it: at the beginnings of epochs, which it counts
from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.optim import Optimizer
from torch.optim.swa_utils import SWALR

from core import Callback, Capability, ConfigurationError, Trainer, UnsupportedError
from core_lightning.decisions.overrides import RefusesOverrides
from core_lightning.utilities.lists import as_list
from core_lightning.utilities.types import LRSchedulerConfig

Average = Callable[[Tensor, Tensor, Tensor], Tensor]

_IN_PARTS = Capability.SHARDED_STATE | Capability.OWNS_STEP | Capability.COMPILED_STEP
"""Strategies whose weights aren't whole between two steps."""


class StochasticWeightAveraging(RefusesOverrides, Callback):
    """Averages the weights with which each of the last epochs begins, while SWALR leads the
    learning rate.

    A module with BatchNorm has one epoch more at the end: training steps without backward, in which
    the layers collect the statistics of the averaged weights.

    Args:
        swa_lrs: the learning rate, or one for each parameter group.
        swa_epoch_start: the first of those epochs, counted from 1, or its place in all epochs (0.0
            to 1.0).
        annealing_epochs: epochs in which the learning rate gets there.
        annealing_strategy: along a cosine, or a line.
        avg_fn: the new average of a weight, from the average, the weight and the number of updates.
        device: where the average is kept; None is the module's.
    """

    uncalled = dict.fromkeys(
        [
            "transfer_weights",
            "update_parameters",
            "reset_batch_norm_and_save_state",
            "reset_momenta",
        ],
        "Pass avg_fn.",
    )

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: Literal["cos", "linear"] = "cos",
        avg_fn: Average | None = None,
        device: torch.device | str | None = "cpu",
    ) -> None:
        is_whole = isinstance(swa_epoch_start, int) and swa_epoch_start >= 1
        is_fraction = isinstance(swa_epoch_start, float) and 0 <= swa_epoch_start <= 1
        if not is_whole and not is_fraction:
            raise ConfigurationError(
                "swa_epoch_start should be a >0 integer or a float between 0 and 1."
            )
        rates = as_list(swa_lrs)
        if not rates or not all(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ConfigurationError(
                "swa_lrs should be a positive float, or a list of positive floats."
            )
        self._swa_lrs, self._given_start = swa_lrs, swa_epoch_start
        self._annealing_epochs, self._annealing_strategy = annealing_epochs, annealing_strategy
        self._avg_fn, self._device = avg_fn or self.avg_fn, device
        self._max_epochs: int | None = None
        self._adds_epoch = False
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """Nothing was averaged yet."""
        self._swa_epoch_start = self._given_start
        self.n_averaged: Tensor | None = None
        self._average: list[Tensor] = []
        self._scheduler: SWALR | None = None
        self._restored: dict[str, Any] = {}
        self._updated_in = -1
        self.momenta: dict[BatchNorm, float | None] = {}

    @staticmethod
    def avg_fn(
        averaged_model_parameter: Tensor, model_parameter: Tensor, num_averaged: Tensor
    ) -> Tensor:
        """The mean of all."""
        return averaged_model_parameter + (model_parameter - averaged_model_parameter) / (
            num_averaged + 1
        )

    @staticmethod
    def pl_module_contains_batch_norm(pl_module: nn.Module) -> bool:
        """True if there is a BatchNorm layer."""
        return any(isinstance(part, BatchNorm) for part in pl_module.modules())

    @property
    def swa_start(self) -> int:
        """The first epoch that is averaged, counted from 0."""
        return max(int(self._swa_epoch_start) - 1, 0)

    @property
    def swa_end(self) -> float:
        """The last epoch that is averaged, counted from 0."""
        if self._max_epochs is None:
            return float("inf")
        return self._max_epochs - 1

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse strategies whose weights aren't whole between two steps."""
        found = _IN_PARTS & trainer.strategy.capabilities
        if found:
            raise UnsupportedError(
                f"StochasticWeightAveraging needs whole weights between two steps, and "
                f"{type(trainer.strategy).__name__} has none. Use ddp, or EMAWeightAveraging.",
                capability=found,
            )

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Find the first epoch, and make room for the average."""
        if len(trainer.optimizers) != 1 or len(trainer.strategy.lr_schedulers) > 1:
            raise ConfigurationError(
                "StochasticWeightAveraging works with one optimizer, and at most one scheduler."
            )
        self._max_epochs = trainer.options.max_epochs
        if self._max_epochs == -1:
            self._max_epochs = None
        if isinstance(self._swa_epoch_start, float):
            if self._max_epochs is None:
                raise ConfigurationError(
                    "StochasticWeightAveraging(swa_epoch_start=...) is a fraction of max_epochs, "
                    "which is not given. Pass an epoch (int)."
                )
            self._swa_epoch_start = int(self._max_epochs * self._swa_epoch_start)
        if self.pl_module_contains_batch_norm(module) and self._max_epochs is not None:
            self._adds_epoch = True
            trainer.options = replace(trainer.options, max_epochs=self._max_epochs + 1)
        if not self._average:
            self._average = [
                each.detach().clone().to(self._device or each.device)
                for each in module.parameters()
            ]

    def before_restore(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """The module's own scheduler is gone in a checkpoint of the averaged epochs."""
        if checkpoint.get("leads"):
            trainer.strategy.lr_schedulers = [self._lead(trainer.optimizers[0])]

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Update the average; or begin the epoch for the statistics."""
        epoch = trainer.current_epoch
        if self.swa_start <= epoch <= self.swa_end:
            if self._scheduler is None:
                trainer.strategy.lr_schedulers[:1] = [self._lead(trainer.optimizers[0])]
            if self.n_averaged is None:
                self.n_averaged = torch.tensor(self._restored.get("n_averaged", 0))
            if epoch > self._updated_in:
                self._update(module)
                self._updated_in = epoch
        if epoch == self.swa_end + 1:
            self._transfer(module)
            self._reset_batch_norm(module)
            self._skip_backward(trainer)

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Give the module its average."""
        if self._adds_epoch:
            self._adds_epoch = False
            trainer.options = replace(trainer.options, max_epochs=self._max_epochs)
            for part, momentum in self.momenta.items():
                part.momentum = momentum
            self.momenta = {}
        if self._max_epochs in (None, trainer.current_epoch):
            self._transfer(module)

    def state_dict(self) -> dict[str, Any]:
        """The average, the number of updates, and the learning rate's course."""
        return {
            "n_averaged": int(self.n_averaged or 0),
            "latest_update_epoch": self._updated_in,
            "average": list(self._average),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._restored, self._updated_in = state, state["latest_update_epoch"]
        for average, saved in zip(self._average, state["average"], strict=False):
            average.copy_(saved)

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Note whether SWALR leads, whose state the schedulers' is."""
        checkpoint["leads"] = self._scheduler is not None

    def _lead(self, optimizer: Optimizer) -> LRSchedulerConfig:
        rates = self._swa_lrs
        if not isinstance(rates, list | tuple):
            rates = [rates] * len(optimizer.param_groups)
        for rate, group in zip(rates, optimizer.param_groups, strict=False):
            group["initial_lr"] = rate
        # As Lightning calls it: torch's SWALR warns of the last epoch otherwise.
        last_epoch = -1
        if self._annealing_strategy == "cos" and self._max_epochs is not None:
            last_epoch = self._max_epochs
        self._scheduler = SWALR(
            optimizer,
            rates,  # type: ignore[arg-type]  # which takes lists
            self._annealing_epochs,
            self._annealing_strategy,
            last_epoch,
        )
        return LRSchedulerConfig(self._scheduler)

    def _update(self, module: nn.Module) -> None:
        assert self.n_averaged is not None
        for average, parameter in zip(self._average, module.parameters(), strict=True):
            weight = parameter.detach().to(average.device)
            if self.n_averaged > 0:
                weight = self._avg_fn(average, weight, self.n_averaged)
            average.copy_(weight)
        self.n_averaged += 1

    def _transfer(self, module: nn.Module) -> None:
        for average, parameter in zip(self._average, module.parameters(), strict=True):
            parameter.detach().copy_(average.to(parameter.device))

    def _reset_batch_norm(self, module: nn.Module) -> None:
        for part in module.modules():
            if isinstance(part, BatchNorm):
                part.reset_running_stats()
                self.momenta[part], part.momentum = part.momentum, None

    def _skip_backward(self, trainer: Trainer) -> None:
        """Run the training steps of this epoch alone: its last batch steps an optimizer without
        gradients.
        """
        step: Any = trainer.running_step
        usual = step.step_optimizer or trainer.strategy.optimizer_step
        hook = step.before_optimizer_step

        def is_last() -> bool:
            return trainer.progress.batch + 1 >= trainer.num_training_batches

        def step_at_the_end(optimizer: Optimizer, closure: Callable[[], Any] | None) -> int:
            if is_last():
                return int(usual(optimizer, closure))
            if closure is not None:
                closure()
            return 0

        step_at_the_end.counts = False  # type: ignore[attr-defined]
        step.before_backward = step.after_backward = step.before_zero_grad = None
        step.backward, step.step_optimizer = lambda loss: None, step_at_the_end

        def hook_at_the_end(optimizer: Optimizer) -> None:
            if is_last():
                hook(optimizer)

        if hook is not None:
            step.before_optimizer_step = hook_at_the_end
