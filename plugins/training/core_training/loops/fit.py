"""The training loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import Capability, ModuleError, TrainingStep, UnsupportedError
from core.data import read_windows
from core.watch import heartbeat
from core_training.checks.monitors import warn_of_misspelt_monitors
from core_training.checks.stage_checks import check_iterators, check_max_steps
from core_training.checks.untrained import warn_of_late
from core_training.hooks.argument_counts import call_with
from core_training.logging.non_finite_losses import guarded, loss_in, weight_in
from core_training.loops.evaluate import evaluate
from core_training.loops.fit_warnings import NoUpdateCheck
from core_training.loops.loop_policy import LoopPolicy
from core_training.loops.profiling import mark_steps, profile_parts
from core_training.loops.scheduling import schedulers_by, step_schedulers, step_waiting
from core_training.loops.stop_agreement import StopAgreement
from core_training.loops.validation_schedule import ValidationSchedule
from core_training.module.module import require_method
from core_training.module.module_steps import apply_overrides
from core_training.module.optimization import evaluates_loss, takes_metric
from core_training.stage_data.evaluation_loaders import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import Collectives, StepOutput
    from core.data import MicroBatch
    from core_training.run import Run

_END = object()


class FitLoop:
    """Runs epochs until a limit is reached. Everything that can be decided before the first batch
    is decided here.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.options = run.options
        self.progress = run.progress
        self.strategy = run.strategy
        self.outputs: object = None

    def run(self) -> None:
        """All ranks. Train from the restored position to a limit, or a stop."""
        run = self._run
        self.progress.start_clock()
        self.stops = StopAgreement(run)
        run.wake = self.stops.wake
        try:
            self._run_to_end()
        finally:
            self.progress.stop_clock()
            run.wake = None

    def _run_to_end(self) -> None:
        run = self._run
        self._prepare()
        if not run.module.training:  # parts that the user has put into evaluation mode stay there
            run.module.train()
        run.metrics = run.logged.train
        run.logged.train.open(on_epoch_default=True, strategy=self.strategy, holds=True)
        run.events.emit("on_train_start")
        run.logged.train.on_epoch_default = False
        with run.signals.training(self.stops.wake):
            while not self._stops():
                self._run_epoch()
        if self.log_every and not run.publisher.has_published_step:  # the run was shorter than that
            run.publisher.publish_step(run.logged.train, None, run.module)
        run.logged.train.close()
        self.strategy.synchronize_model()
        run.events.emit("on_train_end")

    def _prepare(self) -> None:
        check_max_steps(self._run)
        check_iterators(self._run)
        events, options = self._run.events, self.options
        self.no_update_check = NoUpdateCheck(self._run)
        self.line: Collectives | None = None
        self.step = self._make_step()
        self.batch_start = events.hook("on_train_batch_start")
        self.batch_end = mark_steps(self._run.profiler, events.hook("on_train_batch_end"))
        # by default a plain loss is handed on without a call
        shape = type(self._run.loop_policy).step_outputs
        self.shapes_outputs = shape is not LoopPolicy.step_outputs
        self.transfer = self._run.make_transfer()
        self.schedule = ValidationSchedule(self._run)
        self.log_every = options.log_every_n_steps if self._run.publisher.loggers else 0
        self.begins_at = self.progress.total_batches
        self.max_steps = options.max_steps if options.max_steps >= 0 else math.inf

    def _make_step(self) -> TrainingStep:
        run, options, strategy, module = self._run, self.options, self.strategy, self._run.module
        events, capabilities = run.events, strategy.capabilities
        manual = not getattr(module, "automatic_optimization", True)
        optimizers = strategy.optimizers
        step = TrainingStep(
            compute_loss=self._make_compute_loss(manual),
            module=run.session.handle_of(module).wrapped,
            optimizers=optimizers,
            manual=manual,
            num_accumulated=1
            if Capability.OWNS_ACCUMULATION in capabilities
            else run.accumulate_grad_batches,
            clipping=None if Capability.OWNS_CLIPPING in capabilities else options.clipping,
            needs_closure=any(evaluates_loss(optimizer) for optimizer in optimizers),
            before_backward=events.hook("on_before_backward"),
            after_backward=events.hook("on_after_backward"),
            before_optimizer_step=events.hook("on_before_optimizer_step"),
            before_zero_grad=events.hook("on_before_zero_grad"),
        )
        apply_overrides(run, step)
        if len(optimizers) > 1 and not manual:
            from core_training.loops.several_optimizers import join_optimizers  # most have one

            join_optimizers(step)
        profile_parts(run.profiler, step, strategy)
        run.running_step = step
        return step

    def _make_compute_loss(self, manual: bool) -> Callable[[Any, int], Tensor | None]:
        module = self._run.module
        training_step = require_method(module, "training_step", "fit")
        call = call_with(
            self.strategy.step_callable("training_step", module), training_step, num_arguments=2
        )
        context = self.strategy.forward_context()
        has_stepped = manual or Capability.COMPILED_STEP in self.strategy.capabilities
        unpack = self._unpack_stepped if has_stepped else self._unpack

        def compute_loss(batch: object, batch_idx: int) -> Tensor | None:
            begun = self.progress.global_step
            output = call(batch, batch_idx)
            if not manual and self.progress.global_step != begun:
                raise ModuleError(
                    "training_step steps an optimizer, and so does the loop, for the loss that it "
                    "returns. Leave out backward(), step() and zero_grad(); or set "
                    "self.automatic_optimization = False, and call self.manual_backward(loss) "
                    "before them."
                )
            if (
                type(output) is Tensor
                and output.requires_grad
                and not output.ndim
                and not has_stepped
            ):
                self.outputs = output
                return output
            return unpack(output)

        def compute_loss_in_context(batch: object, batch_idx: int) -> Tensor | None:
            with context:  # type: ignore[union-attr]
                return compute_loss(batch, batch_idx)

        compute = compute_loss if context is None else compute_loss_in_context
        if not self.options.terminate_on_nan:
            return compute
        return guarded(compute, module, self.progress, lambda: weight_in(self.outputs))

    def _unpack(self, output: object) -> Tensor | None:
        self.outputs = output
        if output is None:
            self.no_update_check.note_missing_loss()
            return None
        if (weight := weight_in(output)) is not None:
            if self._run.logged.train.held is None:
                raise ModuleError(
                    "training_step returned a loss with a weight, and gave none before in this "
                    "fit. Give one with each loss, or with none."
                )
            self._run.session.weigh(weight)
        elif isinstance(output, dict) and "weights" in output:
            from core_training.loops.fit_warnings import warn_of_weights

            warn_of_weights(self._run, output["weights"])
        loss = loss_in(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ModuleError(
                f"training_step returned {_describe(output)}; expected a scalar tensor, a dict "
                "with one under 'loss', or None to skip the batch."
            )
        if not loss.requires_grad and self.strategy.optimizers:
            raise ModuleError(
                "training_step returned a loss without a graph, so that nothing can be learned "
                "from it. Compute it from parameters that require gradients, outside of "
                "torch.no_grad(), and don't detach it."
            )
        return loss

    def _unpack_stepped(self, output: object) -> Tensor | None:
        if not self.step.manual and weight_in(output) is not None:
            raise UnsupportedError(
                f"training_step returned a loss with a weight, and {type(self.strategy).__name__} "
                "has stepped by then, in one compiled program. Leave the weight out, or use "
                "another strategy, such as ddp.",
                capability=Capability.WEIGHTED_LOSSES,
            )
        self.outputs = output
        loss = loss_in(output)
        return loss.detach() if isinstance(loss, Tensor) else None

    # epochs ---------------------------------------------------------------------------------------

    def _run_epoch(self) -> None:
        run, progress = self._run, self.progress
        run.metrics = run.logged.train
        # Within an epoch, the random state is restored once the loader was opened.
        if progress.batch == 0:
            self._restore_random_state()
        run.loaders.begin_epoch(progress.epoch)
        run.set_window()
        if progress.batch == 0:
            self._emit_epoch("on_train_epoch_start")
        self._apply_changes()
        self.no_update_check.begin_epoch()
        is_over = self._run_batches()
        self.step.weight = run.logged.train.share = None
        run.logged.losses.look_at_output(self.outputs, run.module, self.strategy)
        if is_over:
            self._end_epoch()
        else:
            run.publisher.publish_epoch(run.logged.train, run.module, is_over=False)

    def _end_epoch(self) -> None:
        """End the epoch. Not called where a limit is reached within it: a resumed run has the rest
        of it to do.
        """
        run, progress = self._run, self.progress
        run.publisher.show_epoch(run.logged.train, run.module)
        progress.epoch_is_ending = True
        self._emit_epoch("on_train_epoch_end", last=False)
        run.publisher.publish_epoch(run.logged.train, run.module)
        for item in self.plateaus:
            item.renewed_by.add("epoch")
        step_schedulers(run, self.epoch_schedulers, progress.epoch + 1)
        step_waiting(run, self.plateaus)
        progress.epoch_is_ending, progress.epoch_is_over = False, True
        self._emit_epoch("on_train_epoch_end", last=True)
        if run.pending_saves:
            self._write_pending()
        progress.end_epoch()

    def _apply_changes(self) -> None:
        """Adopt what callbacks may change from one epoch to the next: what is frozen, the window,
        the schedulers.
        """
        capabilities = self.strategy.capabilities
        if self._run.session.refresh_modules():
            self.step.release()
            self.step = self._make_step()
        self.step.ends_window = True
        if Capability.OWNS_ACCUMULATION not in capabilities:
            self.step.num_accumulated = self._run.accumulate_grad_batches
        manual = self.step.manual
        self.step_schedulers = schedulers_by(self._run, "step", manual=manual)
        self.epoch_schedulers = schedulers_by(self._run, "epoch", manual=manual)
        self.plateaus = [
            item for item in (*self.step_schedulers, *self.epoch_schedulers) if takes_metric(item)
        ]

    def _emit_epoch(self, name: str, **which: bool) -> None:
        self._run.logged.train.on_epoch_default = True
        self._run.events.emit(name, **which)
        self._run.logged.train.on_epoch_default = False

    def _stops(self) -> bool:
        """All ranks, between two epochs. True if the run ends here, by a limit, a request, or a
        signal.
        """
        self.stops.agree(self.progress.batch)
        return self._is_done()

    def _stops_after(self, batch: int) -> bool:
        """All ranks, between two optimizer steps of an epoch."""
        if batch >= self.stops.look_at:
            self.stops.look(batch)
        return self._is_done()

    def _is_done(self) -> bool:
        """True when a limit is reached, or a stop was asked for that needn't wait."""
        options, progress = self.options, self.progress
        if 0 <= options.max_steps <= progress.global_step or self.stops.is_late:
            return True
        if options.max_epochs is not None and 0 <= options.max_epochs <= progress.epoch:
            return True
        return self.stops.is_asked and self._run.has_reached_least

    # batches --------------------------------------------------------------------------------------

    def _run_batches(self) -> bool:
        """Train the epoch's batches. True if the epoch came to its end."""
        run, progress, step, stops = self._run, self.progress, self.step, self.stops
        signals, metrics = run.signals, run.logged.train
        fetch: Callable[..., object] = run.profiled("fetch_batch", next)
        train: Callable[..., StepOutput] = run.profiled(
            "run_training_step", self.strategy.run_training_step
        )
        batches, uneven = self._open_batches()
        micro_batch: MicroBatch | None = None
        num_batches, window = self.num_batches, run.window
        self.is_validation_due = self.schedule.begin_epoch()
        self._validate_belatedly()
        first = batch_idx = progress.batch
        stops.begin(batch_idx)
        heartbeat.phase = "step"
        while batch_idx < num_batches:
            heartbeat.count += 1
            signals.is_fetching = True  # a signal doesn't wait for data that never comes
            batch = fetch(batches, _END)
            signals.is_fetching = False
            if batch is _END:
                break
            if self.transfer is not None:
                batch = self.transfer(batch)
            metrics.batch, metrics.weight = batch, None
            if uneven or micro_batch is not None:
                micro_batch = uneven.pop(batch_idx - first, None)
                step.weight = metrics.share = None if micro_batch is None else micro_batch.weight
            if window > 1:
                ends_short = micro_batch is not None and micro_batch.ends_window
                is_whole = batch_idx + 1 - progress.window_start >= window
                step.ends_window = is_whole or ends_short or batch_idx + 1 == num_batches
            if self.batch_start is not None and self.batch_start(batch, batch_idx) == -1:
                self._drop_window()
                return True
            # An engine may take several batches in its step. Optimizers that a module steps itself
            # count by themselves.
            steps_before = progress.global_step
            output = (
                train(batch, batch_idx, step)
                if step.weight != 0
                else self._join(train, batch, batch_idx)
            )
            if metrics.held is not None:  # until a loss has come without a weight
                metrics.release(self.outputs)
                if progress.total_batches == self.begins_at:
                    warn_of_misspelt_monitors(run, metrics.names())
                    warn_of_late(run)
            batch_idx = progress.batch = batch_idx + output.num_batches
            progress.total_batches += output.num_batches
            progress.global_step += output.num_optimizer_steps
            if step.ends_window:
                progress.window_start = batch_idx
            stepped = progress.global_step > steps_before
            if stepped and self.step_schedulers:
                step_schedulers(run, self.step_schedulers, progress.global_step)
            if self.batch_end is not None:
                outputs: object = output.loss
                if self.shapes_outputs or type(self.outputs) is not Tensor:
                    outputs = run.loop_policy.step_outputs(self.outputs, output.loss)
                self.batch_end(outputs, batch, batch_idx - output.num_batches)
            if (
                stepped
                and self.log_every
                and progress.global_step // self.log_every > steps_before // self.log_every
            ):
                run.publisher.publish_step(metrics, self.outputs, run.module)
            if self.is_validation_due is not None and self.is_validation_due(batch_idx):
                self._validate()
            # Checkpoints and stops come between two optimizer steps only.
            if step.ends_window:
                if run.pending_saves:
                    self._write_pending()
                may_stop = batch_idx >= stops.look_at or progress.global_step >= self.max_steps
                if may_stop and self._stops_after(batch_idx) and batch_idx < num_batches:
                    return run.loop_policy.ends_cut_epochs and self._end_cut_epoch()
        self._end_batches(batches, batch_idx)
        return True

    def _join(self, train: Callable[..., StepOutput], batch: object, batch_idx: int) -> StepOutput:
        """Make a step because the other ranks do, on samples that are theirs: nothing of it
        counts.
        """
        # few steps are joined
        from core_training.loops.unchanged_statistics import unchanged_statistics

        self._run.strategy.session.buffers_stayed = True
        with unchanged_statistics(self._run.module):
            return train(batch, batch_idx, self.step)

    def _open_batches(self) -> tuple[Iterator[object], dict[int, MicroBatch]]:
        """The epoch's remaining batches, and those that are uneven."""
        run, loaders, batches = self._run, self._run.loaders, self._open_loader()
        uneven = loaders.uneven
        self.line = self.line or self._open_line()
        if not loaders.is_sharded and (run.window > 1 or self.line is not None):
            batches = read_windows(
                batches,
                uneven,
                num_accumulated=run.window,
                num_batches=self.num_batches - self.progress.batch,
                has_sizes=not loaders.is_combined,
                share=self.strategy.data_parallel_rank,
                collectives=self.line,
                goes_on=self.progress.batch > 0,
                last=loaders.last_read,
            )
        return batches, uneven

    def _open_line(self) -> Collectives | None:
        """All ranks. A line between them to agree on batches, where they don't know how many they
        have, or their sizes.

        Batches of one size are taken for granted where each is a step, and ranks know how many they
        have.
        """
        run, loaders = self._run, self._run.loaders
        agrees = loaders.knows_length and (loaders.is_combined or run.window == 1)
        if agrees or loaders.is_sharded or not loaders.weighs or not run.session.has_peers:
            return None
        try:
            return self.strategy.background_collectives()
        except UnsupportedError:
            return None

    def _write_pending(self) -> None:
        from core_training.state import saving  # a run without checkpoints waits for none of it

        saving.write_pending(self._run)

    def _end_batches(self, batches: Iterator[object], num_batches: int) -> None:
        """All ranks, when the epoch's batches are done: see that they are for all, and validate if
        that is due.
        """
        run = self._run
        heartbeat.phase = "end of epoch"
        run.logged.train.batch = None
        self.progress.epoch_is_trained = True
        if num_batches == 0:
            run.loaders.refuse_empty_loader()
        self.no_update_check.end_epoch(num_batches)
        if not run.loaders.knows_length and self.line is None and run.session.has_peers:
            # where the watch sees a rank that is out of data
            self.strategy.barrier("the end of an epoch")
        if run.loop_policy.asks_beyond_length and num_batches == length_of(run.loaders.train):
            # as a `for` loop asks once more: the order of some samplers depends on it
            next(batches, None)
        if self.schedule.is_due_after_epoch():
            self._validate()

    def _end_cut_epoch(self) -> bool:
        """All ranks, where a stop has cut an epoch that is to end as a whole one does."""
        if (
            self.stops.is_asked
            and self._run.has_reached_least
            and self.schedule.is_due_after_epoch(is_cut=True)
        ):
            self._validate()
        return True

    def _open_loader(self) -> Iterator[object]:
        """An iterator over the epoch's remaining batches, with the restored random state where a
        run goes on.

        torch's loader draws from the random state when it is opened: within an epoch that draw has
        been made before. One that is read again up to its position draws the same once more, its
        order perhaps.
        """
        run, place = self._run, (self.strategy.accelerator, self.strategy.root_device)
        at_opening = (run.restored_random_state or {}).get("at_opening")
        if at_opening is not None:
            restore_random_state(at_opening, *place)
        run.random_state_at_opening = (
            collect_random_state(*place) if run.loaders.reads_again else None
        )
        with run.signals.hidden_from_children():
            batches: Iterator[Any] = run.loaders.open_train(run.window, self._num_left)
        # a batch sampler may know it only now
        self.num_batches: int | float = self._num_left() + self.progress.batch
        if self.progress.batch >= self.num_batches:
            # the order of an epoch that is over is drawn too, so that the next one's follows it
            next(batches, None)
        self._restore_random_state()
        return batches

    def _num_left(self) -> int | float:
        """Batches from the position to the epoch's end."""
        # Other ranks than before, or batches of another size, may cut what is left into another
        # number of batches.
        return (
            math.inf
            if self.progress.is_recut
            else self._run.loaders.count_train() - self.progress.batch
        )

    def _drop_window(self) -> None:
        """All ranks, where a hook leaves out the rest of an epoch. Forget the gradients of a window
        that has begun.
        """
        if self._run.count_unfinished():
            for optimizer in self.step.optimizers:
                optimizer.zero_grad()
                if self._run.session.weights is not None:
                    self._run.session.weights.drop(optimizer)
        self.step.ends_window, self.progress.window_start = True, self.progress.batch

    def _restore_random_state(self) -> None:
        """Restore random numbers: once, as the last of all that is restored."""
        state, self._run.restored_random_state = self._run.restored_random_state, None
        if state is not None:
            restore_random_state(state, self.strategy.accelerator, self.strategy.root_device)

    def _validate_belatedly(self) -> None:
        """A run that was stopped between a step and the validation that was due after it begins
        with that.
        """
        due, progress = self.is_validation_due, self.progress
        if (
            progress.batch > 0
            and not progress.is_validated
            and due is not None
            and due(progress.batch)
        ):
            self._validate()
        step_waiting(self._run, self.plateaus)  # if it was saved in the last hooks of a validation

    def _validate(self) -> None:
        """Validate. An interrupted validation is undone: resuming validates again, with the same
        random numbers.
        """
        run, progress, place = (
            self._run,
            self.progress,
            (self.strategy.accelerator, self.strategy.root_device),
        )
        self._agree_on_stop()
        before, progress.validated_batch = progress.validated_batch, progress.batch
        state = collect_random_state(*place)
        renewed = [set(item.renewed_by) for item in self.plateaus]
        for item in self.plateaus:
            item.renewed_by.add("validation")
        try:
            with run.signals.apart_from_steps():
                self.strategy.synchronize_model()
                evaluate(run, "validation", run.loaders.validation)
        except BaseException:
            progress.validated_batch = before
            for item, renewed_by in zip(self.plateaus, renewed, strict=True):
                item.renewed_by = renewed_by
            restore_random_state(state, *place)
            raise
        self.schedule.note()
        step_waiting(run, self.plateaus)
        self._agree_on_stop()

    def _agree_on_stop(self) -> None:
        """Agree with the other ranks on a stop, between steps, before and after something long."""
        if self.step.ends_window:
            self.stops.agree(self.progress.batch)


def _describe(output: object) -> str:
    if isinstance(output, dict) and "loss" not in output:
        return f"a dict with {sorted(map(str, output))}"
    loss = loss_in(output)
    if isinstance(loss, Tensor):
        return f"a tensor of shape {tuple(loss.shape)}"
    return f"{type(output).__name__} {output!r}"[:120]
