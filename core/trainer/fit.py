"""The training loop."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.checkpoint.random_state import restore_random_state
from core.contract import Capability, ModuleError, TrainingStep
from core.trainer.evaluate import evaluate
from core.trainer.look_ahead import LookAhead
from core.trainer.module import require_method
from core.trainer.optimization import takes_metric
from core.trainer.profiling import mark_steps, profile_parts
from core.trainer.signatures import call_with
from core.trainer.validation_schedule import ValidationSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import StepOutput
    from core.trainer.trainer import Trainer

_END = object()


class FitLoop:
    """Runs epochs until a limit is reached. Everything that can be decided before the first batch is decided here."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.options = trainer.options
        self.progress = trainer.progress
        self.strategy = trainer.strategy
        self.outputs: Any = None

    def run(self) -> None:
        """All ranks. From the restored position to a limit, or a stop."""
        trainer = self.trainer
        self._prepare()
        trainer.events.emit("on_train_start")
        while not self._is_done():
            self._run_epoch()
        trainer.events.emit("on_train_end")

    def _prepare(self) -> None:
        events = self.trainer.events
        self.step = self._make_step()
        self.batch_start = events.hook("on_train_batch_start")
        self.batch_end = mark_steps(self.trainer, events.hook("on_train_batch_end"))
        self.transfer = self.trainer.make_transfer()
        self.schedule = ValidationSchedule(self.trainer)
        self.log_every = self.options.log_every_n_steps if self.trainer.loggers else 0
        self.started_s = time.monotonic() - self.progress.elapsed_s
        max_time = self.options.max_time
        self.deadline_s = None if max_time is None else self.started_s + max_time.total_seconds()

    def _make_step(self) -> TrainingStep:
        trainer, options, strategy = self.trainer, self.options, self.strategy
        module = trainer.module
        events, capabilities = trainer.events, strategy.capabilities
        manual = not getattr(module, "automatic_optimization", True)
        owns_accumulation = Capability.OWNS_ACCUMULATION in capabilities
        optimizers = strategy.optimizers
        step = TrainingStep(
            compute_loss=self._make_compute_loss(manual),
            module=strategy.handle_of(module).wrapped,
            optimizers=optimizers,
            manual=manual,
            num_accumulated=1 if owns_accumulation else trainer.accumulate_grad_batches,
            clipping=None if Capability.OWNS_CLIPPING in capabilities else options.clipping,
            needs_closure=any(_evaluates_loss(optimizer) for optimizer in optimizers),
            before_backward=events.hook("on_before_backward"),
            after_backward=events.hook("on_after_backward"),
            before_optimizer_step=events.hook("on_before_optimizer_step"),
            before_zero_grad=events.hook("on_before_zero_grad"),
        )
        profile_parts(trainer, step)
        return step

    def _make_compute_loss(self, manual: bool) -> Callable[[Any, int], Tensor | None]:
        module = self.trainer.module
        training_step = require_method(module, "training_step", "fit")
        call = call_with(self.strategy.step_callable("training_step", module), training_step, num_arguments=2)
        context = self.strategy.forward_context()
        unpack = self._unpack_manual if manual else self._unpack

        def compute_loss(batch: Any, batch_idx: int) -> Tensor | None:
            output = call(batch, batch_idx)
            if type(output) is Tensor and not manual:
                self.outputs = output
                return output
            return unpack(output)

        def compute_loss_in_context(batch: Any, batch_idx: int) -> Tensor | None:
            with context:  # type: ignore[union-attr]
                return compute_loss(batch, batch_idx)

        return compute_loss if context is None else compute_loss_in_context

    def _unpack(self, output: Any) -> Tensor | None:
        self.outputs = output
        loss = output.get("loss") if isinstance(output, dict) else output
        if loss is None and not isinstance(output, dict):
            return None
        if not isinstance(loss, Tensor):
            raise ModuleError(
                f"training_step returned {_describe(output)}; expected a scalar tensor, a dict with one under 'loss', "
                "or None to skip the batch."
            )
        return loss

    def _unpack_manual(self, output: Any) -> Tensor | None:
        self.outputs = output
        loss = output.get("loss") if isinstance(output, dict) else output
        return loss.detach() if isinstance(loss, Tensor) else None

    # epochs ---------------------------------------------------------------------------------------------------------

    def _run_epoch(self) -> None:
        trainer, progress = self.trainer, self.progress
        trainer.module.train()
        trainer.metrics = trainer.train_metrics
        progress.epoch_is_over = False
        self._set_epoch()
        if progress.batch == 0:
            self._emit_epoch("on_train_epoch_start")
        self._take_changes()
        self.num_batches: int | float = trainer.loaders.num_train_batches
        self.is_validation_due = self.schedule.begin_epoch()
        finished = self._run_batches()
        if not finished and not self._limits_end_epoch():
            return
        progress.epoch_is_over = True
        self._emit_epoch("on_train_epoch_end", last=False)
        trainer.publish_epoch(trainer.train_metrics)
        self._step_schedulers(self.epoch_schedulers, progress.epoch + 1)
        self._emit_epoch("on_train_epoch_end", last=True)
        progress.epoch += 1
        progress.batch = 0
        progress.epoch_is_over = False

    def _take_changes(self) -> None:
        """What callbacks may change from one epoch to the next: the accumulation window, and the schedulers."""
        capabilities = self.strategy.capabilities
        self.step.ends_window = True
        if Capability.OWNS_ACCUMULATION not in capabilities:
            self.step.num_accumulated = self.trainer.accumulate_grad_batches
        owned = self.step.manual or Capability.OWNS_SCHEDULER in capabilities
        schedulers = [] if owned else self.strategy.lr_schedulers
        self.step_schedulers = [item for item in schedulers if item.interval == "step"]
        self.epoch_schedulers = [item for item in schedulers if item.interval == "epoch"]

    def _emit_epoch(self, name: str, **which: bool) -> None:
        self.trainer.train_metrics.on_epoch_default = True
        self.trainer.events.emit(name, **which)
        self.trainer.train_metrics.on_epoch_default = False

    def _limits_end_epoch(self) -> bool:
        """Whether a limit has ended the epoch early, and no interruption: its end is then one like others."""
        return self._is_done() or self.trainer.should_stop

    def _set_epoch(self) -> None:
        self.trainer.loaders.begin_epoch(self.progress.epoch)

    def _is_done(self) -> bool:
        """Whether a limit is reached. A stop that somebody asked for waits for the least epochs and steps."""
        options, progress = self.options, self.progress
        if 0 <= options.max_steps <= progress.global_step or self._is_late():
            return True
        if options.max_epochs is not None and 0 <= options.max_epochs <= progress.epoch:
            return True
        least = progress.epoch >= options.min_epochs and progress.global_step >= options.min_steps
        return self.trainer.should_stop and least

    def _is_late(self) -> bool:
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    # batches --------------------------------------------------------------------------------------------------------

    def _run_batches(self) -> bool:
        """Whether the epoch came to its end."""
        trainer, progress, step = self.trainer, self.progress, self.step
        metrics = trainer.train_metrics
        run = trainer.profiled("run_training_step", self.strategy.run_training_step)
        fetch: Callable[..., Any] = trainer.profiled("fetch_batch", next)
        transfer = self.transfer
        batch_start, batch_end = self.batch_start, self.batch_end
        accumulated, num_batches = trainer.accumulate_grad_batches, self.num_batches
        is_validation_due, max_steps = self.is_validation_due, self.options.max_steps
        has_deadline = self.deadline_s is not None
        batches = self._open_loader()
        ahead = LookAhead(batches) if accumulated > 1 and not trainer.loaders.knows_length else None
        batches = ahead or batches
        batch_idx = progress.batch
        while batch_idx < num_batches:
            batch = fetch(batches, _END)
            if batch is _END:
                break
            if transfer is not None:
                batch = transfer(batch)
            metrics.batch = batch
            if accumulated > 1:
                step.ends_window = (batch_idx + 1) % accumulated == 0 or batch_idx + 1 == num_batches
                if ahead is not None and not step.ends_window and ahead.is_last():
                    step.ends_window, trainer.loaders.epoch_end = True, batch_idx + 1
            if batch_start is not None and batch_start(batch, batch_idx) == -1:
                return True
            steps_before = progress.global_step
            output = run(batch, batch_idx, step)
            batch_idx += output.num_batches
            progress.batch = batch_idx
            progress.total_batches += output.num_batches
            progress.global_step += output.num_optimizer_steps
            stepped = progress.global_step > steps_before  # with manual optimization, the optimizers have counted
            if stepped and self.step_schedulers:
                self._step_schedulers(self.step_schedulers, progress.global_step)
            if batch_end is not None:
                outputs = output.loss if type(self.outputs) is Tensor else self._outputs(output)
                batch_end(outputs, batch, batch_idx - output.num_batches)
            if stepped and self.log_every and progress.global_step % self.log_every == 0:
                trainer.publish_step(metrics)
            if is_validation_due is not None and is_validation_due(batch_idx):
                self._validate()
            if trainer.pending_saves and step.ends_window:
                trainer.write_pending()
            if (progress.global_step == max_steps or trainer.should_stop or has_deadline) and self._is_done():
                return batch_idx >= num_batches
        metrics.batch = None
        if batch_idx == 0:
            trainer.loaders.refuse_silence()
        if self.schedule.is_due_after_epoch():
            self._validate()
        return True

    def _open_loader(self) -> Iterator[Any]:
        """An iterator over the epoch's remaining batches, with the restored random state where a run goes on.

        torch's loader draws from the random state when it is opened: within an epoch that draw has been made before.
        """
        state, self.trainer.restored_random_state = self.trainer.restored_random_state, None
        if state is not None and self.progress.batch == 0:
            restore_random_state(state, self.strategy.accelerator, self.strategy.root_device)
        batches: Iterator[Any] = self.trainer.loaders.open_train()
        if state is not None and self.progress.batch > 0:
            restore_random_state(state, self.strategy.accelerator, self.strategy.root_device)
        return batches

    def _outputs(self, output: StepOutput) -> Any:
        """What `training_step` returned, with its loss detached."""
        if isinstance(self.outputs, dict) and "loss" in self.outputs:
            return {**self.outputs, "loss": output.loss}
        return self.outputs

    def _validate(self) -> None:
        evaluate(self.trainer, "validation", self.trainer.loaders.validation)
        self.schedule.note()

    def _step_schedulers(self, schedulers: list[Any], count: int) -> None:
        for item in schedulers:
            if count % item.frequency:
                continue
            if not takes_metric(item):
                item.scheduler.step()
            elif (value := self._monitored(item)) is not None:
                item.scheduler.step(value)

    def _monitored(self, item: Any) -> float | None:
        values = self.trainer.callback_metrics
        if item.monitor in values:
            return float(values[item.monitor])
        if not item.strict:
            return None
        raise ModuleError(
            f"A scheduler monitors {item.monitor!r}, which was not logged; logged were {sorted(values)}. "
            f"Call self.log({item.monitor!r}, ...), or give the scheduler 'strict': False."
        )


def _evaluates_loss(optimizer: Any) -> bool:
    """Whether `step` needs a closure, as LBFGS does: torch says so by a `closure` without a default."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _describe(output: Any) -> str:
    if isinstance(output, dict):
        return f"a dict with {sorted(map(str, output))}"
    return f"{type(output).__name__} {output!r}"[:120]
