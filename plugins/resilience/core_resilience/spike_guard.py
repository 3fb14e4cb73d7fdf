"""Names bad batches, skips the updates that they would make, or goes back to before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.callbacks import Callback
from core.contract import Capability, ConfigurationError, CoreError, UnsupportedError
from core.trainer import warn_caller
from core_resilience.kept_states import states_of
from core_resilience.layout import has_all_gradients
from core_resilience.left_out import LeftOutBatches
from core_resilience.recent_range import RecentRange
from core_resilience.spikes import find_spike, losses_and_norm
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


_MOST_NAMED = 100
"""Updates out of range that are named."""


class SpikeError(CoreError, ArithmeticError):
    """More updates would be skipped than a `SpikeGuard` allows.

    Attributes:
        step: optimizer steps that were made before.
        num_skipped: updates that were skipped so far.
    """

    def __init__(self, message: str, step: int = 0, num_skipped: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.num_skipped = num_skipped


class SpikeGuard(Callback):
    """Skips an update where the loss or the gradient's norm isn't finite, and names one that is far
    out of its range.

    A value that isn't finite would spoil all weights. One that is out of range may be right: a hard
    sample, or a new source of data. It is named and counted in `spike_guard/out_of_range`, and its
    update is made. With `on_spike="skip"` such updates are skipped too.

    Judged at the end of each accumulation window, before clipping, from the values of all ranks, so
    that all skip or none. A skipped update reaches no optimizer and isn't counted: `global_step`
    and schedulers stay. Buffers and random state are put back, so that the run goes on as if it had
    not seen the window's batches. What they logged stays logged. Each is counted in
    `spike_guard/skipped`.

    With `on_spike="go_back"` the run goes back, from either, to a state of a `MemoryCheckpoint`
    from before the last `undo` updates, whose batches are left out from then on, with those of the
    spike. The batches before them are trained again, to the same weights. So the run equals one
    that never saw what is left out. Where no such state is kept, as in the first steps, the update
    is skipped. Returns are counted in `spike_guard/returns`.

    A value is out of range by its distance from the median of the last ones in units of their
    deviation, the scaled median absolute deviation, or a tenth of the median where that is more. Of
    the losses of ranks the highest is compared with the highest ones before, and the lowest with
    the lowest. Values of skipped windows don't count.

    Attributes:
        num_out_of_range: updates that were made with a value out of range, over all restarts.
        num_skipped: updates that were judged bad, likewise.
        num_returns: those of them from which the run went back.
    """

    _step: TrainingStep | None
    _state: StepState | None
    _losses: list[Tensor]
    _skips: bool | None
    _begins_window: bool
    _returns_to: int | None

    def __init__(
        self,
        *,
        above: float | None = 10.0,
        below: float | None = None,
        window: int = 128,
        least: int = 16,
        max_in_a_row: int = 3,
        max_skipped: int = 100,
        on_spike: Literal["warn", "skip", "go_back"] = "warn",
        undo: int = 1,
    ) -> None:
        """Create the callback.

        Args:
            above: deviations above the median that are too many; None: only values that aren't
                finite are.
            below: likewise below it.
            window: updates whose values make the recent range.
            least: updates that are made before any value is out of range.
            max_in_a_row: bad updates one after the other; one more ends the run.
            max_skipped: bad updates in all; one more ends the run.
            on_spike: of a value out of range, name it and make the update; skip the update; or go
                back to a state that a `MemoryCheckpoint` keeps. A value that isn't finite is always
                skipped, or gone back from.
            undo: good updates before the bad one that are undone where the run goes back, since
                they may have led to it. Their batches are left out too.

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
                f"max_skipped={max_skipped!r}): expected numbers of at least 1, and least up to "
                "window."
            )
        if on_spike not in ("warn", "skip", "go_back") or undo < 0:
            raise ConfigurationError(
                f"SpikeGuard(on_spike={on_spike!r}, undo={undo!r}): expected 'warn', 'skip' or "
                "'go_back', and 0 or more."
            )
        self.max_in_a_row = max_in_a_row
        self.max_skipped = max_skipped
        self.on_spike = on_spike
        self.undo = undo
        self._batches = LeftOutBatches(undo, max_in_a_row)
        self._ranges = {
            "highest loss": RecentRange(window, least, above, None),
            "lowest loss": RecentRange(window, least, None, below),
            "gradient's norm": RecentRange(window, least, above, below),
        }
        self.reset_for_fit()
        self._release()

    def reset_for_fit(self) -> None:
        """No update was seen yet."""
        self.num_out_of_range = self.num_skipped = self.num_returns = 0
        self._num_in_a_row = self._num_ranks = self._seen_to = 0
        for each in self._ranges.values():
            each.values.clear()

    def state_dict(self) -> dict[str, Any]:
        """The recent values, the counts, and the batches that are left out."""
        return {
            "values": {name: list(each.values) for name, each in self._ranges.items()},
            "num_out_of_range": self.num_out_of_range,
            "num_skipped": self.num_skipped,
            "num_in_a_row": self._num_in_a_row,
            "num_returns": self.num_returns,
            "left_out": sorted(map(list, self._batches.left_out)),
            "num_ranks": self._num_ranks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these. Where this callback went back, its counts go on."""
        if self._returns_to is None:
            self.num_skipped = state["num_skipped"]
            self._num_in_a_row = state["num_in_a_row"]
            self.num_out_of_range = state.get("num_out_of_range", 0)
            self.num_returns = state.get("num_returns", 0)
        # else a batch of this number has other samples
        if state.get("num_ranks") == self._num_ranks:
            self._batches.left_out.update((epoch, batch) for epoch, batch in state["left_out"])
        for name, values in state["values"].items():
            self._ranges[name].values.clear()
            self._ranges[name].values.extend(values)

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse a run whose updates nothing outside of it can skip.

        Raises:
            UnsupportedError: the strategy's.
            ConfigurationError: the module's, or the precision's; or nothing keeps states to go back
                to.
        """
        strategy = trainer.strategy
        for capability, what in _REFUSED.items():
            if capability in strategy.capabilities:
                raise UnsupportedError(
                    f"SpikeGuard can't skip an update of {type(strategy).__name__}, which {what}. "
                    "Leave the callback out, or use a strategy such as ddp or fsdp.",
                    capability=capability,
                )
        if not getattr(module, "automatic_optimization", True):
            raise ConfigurationError(
                f"SpikeGuard can't skip updates of {type(module).__name__}, which has "
                "automatic_optimization=False and steps its optimizers itself. Look at the loss in "
                "its training_step, or leave the callback out."
            )
        if strategy.precision_plugin.formats.scales_loss:
            raise ConfigurationError(
                f"SpikeGuard can't skip updates with precision={strategy.precision_plugin.name!r}, "
                "whose loss scaler skips those that overflow, and counts on that each other one is "
                "made. Use 'bf16-mixed', or leave the callback out."
            )
        if self.on_spike == "go_back":
            memory = states_of("SpikeGuard(on_spike='go_back')", trainer)
            if (least := -(-self.undo // memory.every_n_train_steps) + 1) > memory.keep:
                raise ConfigurationError(
                    f"SpikeGuard(undo={self.undo}) goes back so many updates, and "
                    "MemoryCheckpoint(every_n_train_steps="
                    f"{memory.every_n_train_steps}, keep={memory.keep}) keeps too few states. Pass "
                    f"keep={least}."
                )

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Refuse gradients of which a rank can't tell what it has.

        Raises:
            UnsupportedError: the strategy's.
        """
        strategy = trainer.strategy
        if not has_all_gradients(strategy, module):
            raise UnsupportedError(
                "SpikeGuard adds up the gradient's norm where each rank has each gradient or a "
                f"part of it, and {type(strategy).__name__} lays out some otherwise. Leave the "
                "callback out, or use a strategy such as ddp or fsdp, or core-parallel with the "
                "axes data and shard.",
                capability=Capability.REPLICATED_PARAMETERS,
            )
        self._num_ranks = strategy.world_size
        self._seen_to = 0
        self._batches = LeftOutBatches(self.undo, self.max_in_a_row)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Forget what was undone, but not that it was."""
        if self._returns_to is not None:
            trainer.logged.take(self._counts())
        self._batches.forget_after(trainer.global_step)
        self._begin()

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Where a window begins, keep what its steps may change."""
        step = trainer.running_step
        if step is not None and step is not self._step:
            self._join(step, trainer.strategy)
            self._state = StepState(module, trainer.strategy)
        if self._begins_window and self._state is not None:
            self._state.keep()
        self._begins_window = False
        self._batches.take(trainer.progress.epoch, batch_idx)

    def on_before_optimizer_step(
        self, trainer: Trainer, module: nn.Module, optimizer: Optimizer
    ) -> None:
        """All ranks. Judge the window; for the first of several optimizers, which step together.

        Raises:
            SpikeError: that would be one bad update too many.
        """
        if self._skips is None and self._batches.has_left_out:
            self._skips = True
        elif self._skips is None:
            losses, norm = losses_and_norm(trainer.strategy, self._losses)
            skips = self.on_spike != "warn"
            reason, self._skips = find_spike(self._ranges, losses, norm, skips=skips)
            if self._skips:
                self._num_in_a_row += 1
                self._count(reason, trainer)
                return
            if reason:
                self._name(reason, trainer)
            if trainer.global_step >= self._seen_to:  # else it was judged before the run went back
                self._num_in_a_row = 0

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Where a window ends that was skipped, put back what it has changed, or go
        back.

        Raises:
            GoBack: which `fit` catches.
        """
        if self._step is None or not self._step.ends_window:
            return
        if self._skips and self._state is not None:
            self._state.put_back()
        if self._returns_to is not None:
            self._batches.leave_out()
            self._seen_to = self._returns_to
            states_of("SpikeGuard", trainer).go_back(trainer, self._returns_to)
        self._batches.end_window(trainer.global_step, is_made=self._skips is False)
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
        self._returns_to = None

    def _join(self, step: TrainingStep, strategy: Strategy) -> None:
        """Stand between the loop's step and what it calls: see its losses, and leave out its
        update.
        """
        if step.needs_closure:
            raise ConfigurationError(
                "SpikeGuard judges an update before the optimizer steps, and this optimizer "
                "computes gradients within its step: it takes a closure, or the module overrides "
                "optimizer_step. Leave the override or the callback out."
            )
        self._step = step
        compute_loss = step.compute_loss
        step_optimizer = step.step_optimizer or strategy.optimizer_step

        def compute(batch: Any, batch_idx: int) -> Tensor | None:
            if self._batches.has_left_out:
                return None
            loss = compute_loss(batch, batch_idx)
            # Without a weight its samples are another rank's. The step itself isn't named here: it
            # would hold itself.
            if loss is not None and self._step is not None and self._step.weight != 0:
                self._losses.append(loss.detach())
            return loss

        def update(optimizer: Optimizer, closure: Callable[[], Any] | None) -> int:
            return 0 if self._skips else step_optimizer(optimizer, closure)

        step.compute_loss = compute
        step.step_optimizer = update

    def _name(self, reason: str, trainer: Trainer) -> None:
        """All ranks. Count an update that is made though a value is out of range, and say so of the
        first ones.
        """
        self.num_out_of_range += 1
        self._log(trainer)
        if trainer.is_global_zero and self.num_out_of_range <= _MOST_NAMED:
            last = (
                " No more are named, and all are counted."
                if self.num_out_of_range == _MOST_NAMED
                else ""
            )
            warn_caller(
                f"SpikeGuard names {_where(trainer)}: {reason}. Its update is made; "
                f"on_spike='skip' leaves such out.{last}"
            )

    def _count(self, reason: str, trainer: Trainer) -> None:
        """All ranks. Count a bad update, and decide what to do about it."""
        self.num_skipped += 1
        step = trainer.global_step
        if self.on_spike == "go_back":
            target = step - self._batches.num_undone
            kept = states_of("SpikeGuard", trainer).kept
            self._returns_to = target if kept and kept[0] <= target else None
            self.num_returns += self._returns_to is not None
        where = _where(trainer)
        self._log(trainer)
        if self._num_in_a_row > self.max_in_a_row or self.num_skipped > self.max_skipped:
            raise SpikeError(
                f"In {where}: {reason}. {self._num_in_a_row} updates in a row were or would be "
                f"skipped, {self.num_skipped} in all, and "
                f"SpikeGuard(max_in_a_row={self.max_in_a_row}, max_skipped={self.max_skipped}) "
                f"allows no more. The weights are those after step {step}: look at the data, lower "
                "the learning rate, or go on from an earlier checkpoint.",
                step,
                self.num_skipped,
            )
        if trainer.is_global_zero:
            does = f"skips the update of {where}"
            if self._returns_to is not None:
                does = f"goes back from {where}, to the newest state up to step {self._returns_to}"
            warn_caller(f"SpikeGuard {does}: {reason}.")

    def _log(self, trainer: Trainer) -> None:
        trainer.logged.take(self._counts())
        trainer.log_metrics(self._counts(), trainer.global_step)

    def _counts(self) -> dict[str, float]:
        counts = {
            "skipped": self.num_skipped,
            "out_of_range": self.num_out_of_range,
            "returns": self.num_returns,
        }
        return {f"spike_guard/{name}": float(count) for name, count in counts.items() if count}


def _where(trainer: Trainer) -> str:
    return (
        f"batch {trainer.progress.batch} of epoch {trainer.progress.epoch}, after step "
        f"{trainer.global_step}"
    )
