"""Skips the updates that bad batches would make."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from core.callbacks import Callback
from core.contract import Capability, ConfigurationError, CoreError, UnsupportedError
from core.trainer import warn_caller
from core_resilience.gradient_norms import join_norms, local_norms
from core_resilience.layout import has_all_gradients
from core_resilience.recent_range import RecentRange
from core_resilience.step_state import StepState

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import Strategy, Trainer
    from core.contract import TrainingStep

_REFUSED = {
    Capability.OWNS_STEP: "steps inside of an engine",
    Capability.COMPILED_STEP: "compiles forward, backward and update into one program",
    Capability.ELASTIC: "has ranks that come and go, each with steps of its own",
    Capability.OWNS_GRADIENTS: "keeps gradients elsewhere, or each rank has its own",
}


class SpikeError(CoreError, ArithmeticError):
    """More updates would be skipped than a `SpikeGuard` allows.

    Attributes:
        step: optimizer steps that were made before.
        num_skipped: updates that were skipped so far.
    """

    def __init__(self, message: str, step: int = 0, num_skipped: int = 0) -> None:
        super().__init__(message)
        self.step, self.num_skipped = step, num_skipped


class SpikeGuard(Callback):
    """Skips the update where the loss or the gradient's norm isn't finite, or is far out of its recent range.

    Judged at the end of each accumulation window, before clipping, from the values of all ranks, so that all skip or
    none. A skipped update reaches no optimizer and isn't counted: `global_step` and schedulers stay. Buffers and
    random state are put back, so that the run goes on as if it had not seen the window's batches. What they logged
    stays logged. Each is counted in `spike_guard/skipped`.

    A value is out of range by its distance from the median of the last ones in units of their deviation, the scaled
    median absolute deviation, or a tenth of the median where that is more. Of the losses of ranks the highest is
    compared with the highest ones before, and the lowest with the lowest. Values of skipped windows don't count.

    Attributes:
        num_skipped: updates that were skipped, over all restarts.
    """

    _step: TrainingStep | None
    _state: StepState | None
    _losses: list[Tensor]
    _skips: bool | None
    _begins_window: bool

    def __init__(
        self,
        *,
        above: float | None = 10.0,
        below: float | None = None,
        window: int = 128,
        least: int = 16,
        max_in_a_row: int = 3,
        max_skipped: int = 100,
    ) -> None:
        """Create the callback.

        Args:
            above: deviations above the median that are too many; None: only values that aren't finite are.
            below: likewise below it.
            window: updates whose values make the recent range.
            least: updates that are made before any value is out of range.
            max_in_a_row: updates skipped one after the other; one more ends the run.
            max_skipped: updates skipped in all; one more ends the run.

        Raises:
            ConfigurationError: a bound that isn't positive, or a number below 1.
        """
        if any(bound is not None and bound <= 0 for bound in (above, below)):
            raise ConfigurationError(
                f"SpikeGuard(above={above!r}, below={below!r}): expected positive numbers, or None."
            )
        if min(window, least, max_in_a_row, max_skipped) < 1 or least > window:
            raise ConfigurationError(
                f"SpikeGuard(window={window!r}, least={least!r}, max_in_a_row={max_in_a_row!r}, "
                f"max_skipped={max_skipped!r}): expected numbers of at least 1, and least up to window."
            )
        self.max_in_a_row, self.max_skipped = max_in_a_row, max_skipped
        self.num_skipped = self._num_in_a_row = 0
        self._ranges = {
            "highest loss": RecentRange(window, least, above, None),
            "lowest loss": RecentRange(window, least, None, below),
            "gradient's norm": RecentRange(window, least, above, below),
        }
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """The recent values, and the counts."""
        values = {name: list(each.values) for name, each in self._ranges.items()}
        return {"values": values, "num_skipped": self.num_skipped, "num_in_a_row": self._num_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these."""
        self.num_skipped, self._num_in_a_row = state["num_skipped"], state["num_in_a_row"]
        for name, values in state["values"].items():
            self._ranges[name].values.clear()
            self._ranges[name].values.extend(values)

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse a run whose updates nothing outside of it can skip.

        Raises:
            UnsupportedError: the strategy's.
            ConfigurationError: the module's, or the precision's.
        """
        strategy = trainer.strategy
        for capability, what in _REFUSED.items():
            if capability in strategy.capabilities:
                raise UnsupportedError(
                    f"SpikeGuard can't skip an update of {type(strategy).__name__}, which {what}. Leave the callback "
                    "out, or use a strategy such as ddp or fsdp.",
                    capability=capability,
                )
        if not getattr(module, "automatic_optimization", True):
            raise ConfigurationError(
                f"SpikeGuard can't skip updates of {type(module).__name__}, which has automatic_optimization=False and "
                "steps its optimizers itself. Look at the loss in its training_step, or leave the callback out."
            )
        if strategy.precision_plugin.formats.scales_loss:
            raise ConfigurationError(
                f"SpikeGuard can't skip updates with precision={strategy.precision_plugin.name!r}, whose loss scaler "
                "skips those that overflow, and counts on that each other one is made. Use 'bf16-mixed', or leave the "
                "callback out."
            )

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Refuse gradients of which a rank can't tell what it has.

        Raises:
            UnsupportedError: the strategy's.
        """
        strategy = trainer.strategy
        if not has_all_gradients(strategy, module):
            raise UnsupportedError(
                f"SpikeGuard adds up the gradient's norm where each rank has each gradient or a part of it, and "
                f"{type(strategy).__name__} lays out some otherwise. Leave the callback out, or use a strategy such as "
                "ddp or fsdp, or core-parallel with the axes data and shard.",
                capability=Capability.REPLICATED_PARAMETERS,
            )

    def on_train_batch_start(self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int) -> None:
        """All ranks. Where a window begins, keep what its steps may change."""
        step = trainer.running_step
        if step is not None and step is not self._step:
            self._join(step, trainer.strategy)
            self._state = StepState(module, trainer.strategy)
        if self._begins_window and self._state is not None:
            self._state.keep()
        self._begins_window = False

    def on_before_optimizer_step(self, trainer: Trainer, module: nn.Module, optimizer: Optimizer) -> None:
        """All ranks. Judge the window; for the first of several optimizers, which step together.

        Raises:
            SpikeError: that would be one skipped update too many.
        """
        if self._skips is None:
            reason = self._judge(trainer.strategy)
            self._skips = bool(reason)
            self._num_in_a_row = self._num_in_a_row + 1 if reason else 0
            if reason:
                self._count(reason, trainer)

    def on_train_batch_end(self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """All ranks. Where a window ends that was skipped, put back what it has changed."""
        if self._step is None or not self._step.ends_window:
            return
        if self._skips and self._state is not None:
            self._state.put_back()
        self._begin()

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Release the run."""
        self._release()

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Release the run, also after an error."""
        self._release()

    def _release(self) -> None:
        self._step = self._state = None
        self._begin()

    def _begin(self) -> None:
        self._losses, self._skips, self._begins_window = [], None, True

    def _join(self, step: TrainingStep, strategy: Strategy) -> None:
        """Stand between the loop's step and what it calls: see its losses, and leave out its update."""
        if step.needs_closure:
            raise ConfigurationError(
                "SpikeGuard judges an update before the optimizer steps, and this optimizer computes gradients within "
                "its step: it takes a closure, or the module overrides optimizer_step. Leave the override or the "
                "callback out."
            )
        self._step, compute_loss = step, step.compute_loss
        step_optimizer = step.step_optimizer or strategy.optimizer_step

        def compute(batch: Any, batch_idx: int) -> Tensor | None:
            loss = compute_loss(batch, batch_idx)
            if loss is not None and step.weight != 0:  # else its samples are another rank's
                self._losses.append(loss.detach())
            return loss

        def update(optimizer: Optimizer, closure: Callable[[], Any] | None) -> int:
            return 0 if self._skips else step_optimizer(optimizer, closure)

        step.compute_loss, step.step_optimizer = compute, update

    def _judge(self, strategy: Strategy) -> str:
        """All ranks. Why the update is to be skipped; empty if it isn't, and then the values are noted."""
        device = strategy.root_device
        losses = [loss.reshape(()).to(device, torch.float32) for loss in self._losses]
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        count = torch.full((1,), float(len(losses)), device=device)
        own = torch.cat([loss.reshape(1), count, local_norms(strategy.optimizers, device, strategy.world_size)])
        ranks: list[list[float]] = strategy.all_gather(own).reshape(-1, len(own)).tolist()
        seen = {rank: values[0] for rank, values in enumerate(ranks) if values[1]}
        norm = join_norms([(values[2], values[3]) for values in ranks])
        return self._find_spike(seen, norm)

    def _find_spike(self, losses: dict[int, float], norm: float) -> str:
        if wrong := {rank: loss for rank, loss in losses.items() if not math.isfinite(loss)}:
            return f"the loss of {', '.join(f'rank {rank} is {loss}' for rank, loss in wrong.items())}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        values = {"gradient's norm": (norm, "")}
        if losses:
            highest, lowest = max(losses, key=losses.__getitem__), min(losses, key=losses.__getitem__)
            values["highest loss"] = losses[highest], f", that of rank {highest},"
            values["lowest loss"] = losses[lowest], f", that of rank {lowest},"
        for name, (value, whose) in values.items():
            lower, upper = self._ranges[name].bounds()
            if not lower <= value <= upper:
                return f"the {name}{whose} is {value:.6g}, out of its recent range from {lower:.6g} to {upper:.6g}"
        for name, (value, _) in values.items():
            self._ranges[name].values.append(value)
        return ""

    def _count(self, reason: str, trainer: Trainer) -> None:
        self.num_skipped += 1
        step = trainer.global_step
        where = f"batch {trainer.progress.batch} of epoch {trainer.progress.epoch}, after step {step}"
        values = {"spike_guard/skipped": float(self.num_skipped)}
        trainer.logged.take(values)
        trainer.log_metrics(values, step)
        if self._num_in_a_row > self.max_in_a_row or self.num_skipped > self.max_skipped:
            raise SpikeError(
                f"In {where}: {reason}. {self._num_in_a_row} updates in a row were or would be skipped, "
                f"{self.num_skipped} in all, and SpikeGuard(max_in_a_row={self.max_in_a_row}, "
                f"max_skipped={self.max_skipped}) allows no more. The weights are those after step {step}: look at the "
                "data, lower the learning rate, or go on from an earlier checkpoint.",
                step,
                self.num_skipped,
            )
        if trainer.is_global_zero:
            warn_caller(f"SpikeGuard skips the update of {where}: {reason}.")
