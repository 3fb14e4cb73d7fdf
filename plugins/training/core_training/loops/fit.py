"""The training loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import Capability, ConfigurationError
from core.watch import heartbeat
from core_training.checks.monitors import warn_of_misspelt_monitors
from core_training.checks.stage_checks import check_iterators, check_max_steps
from core_training.checks.untrained import warn_of_late
from core_training.hooks.loop_policy import LoopPolicy
from core_training.loops.epoch_batches import EpochBatches
from core_training.loops.evaluate import evaluate
from core_training.loops.fit_warnings import NoUpdateCheck
from core_training.loops.profiling import mark_steps
from core_training.loops.scheduling import schedulers_by, step_schedulers, step_waiting
from core_training.loops.step_making import StepMaker
from core_training.loops.stop_agreement import StopAgreement
from core_training.loops.validation_schedule import ValidationSchedule
from core_training.module.optimization import takes_metric
from core_training.stage_data.evaluation_loaders import length_of
from core_training.views.logger_publisher import publish_epoch, publish_step, show_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import StepOutput
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

    def run(self) -> None:
        """All ranks. Train from the restored position to a limit, or a stop."""
        run = self._run
        self.progress.start_clock()
        self.stops = StopAgreement(run)
        run.wake = self.stops.wake
        try:
            self._prepare()
            if not run.module.training:  # parts that the user has put into evaluation mode stay so
                run.module.train()
            run.metrics = run.logged.train
            run.logged.train.open(on_epoch_default=True, strategy=self.strategy, holds=True)
            self._emit("on_train_start")
            self._run_epochs()
        finally:
            self.progress.stop_clock()
            run.wake = None

    def _run_epochs(self) -> None:
        run = self._run
        with run.signals.training(self.stops.wake):
            self.stops.agree(self.progress.batch)
            while not self._is_done():
                self._run_epoch()
                self.stops.agree(self.progress.batch)
        if not run.has_published_step and run.stage_loggers:
            # the run was shorter than `log_every_n_steps`
            publish_step(run, None)
        run.logged.train.close()
        self.strategy.synchronize_model()
        run.events.emit("on_train_end")

    def _prepare(self) -> None:
        run, options, events = self._run, self.options, self._run.events
        check_max_steps(run)
        check_iterators(run)
        self.no_update_check = NoUpdateCheck(run)
        self.batches = EpochBatches(run)
        self.maker = StepMaker(run, self.no_update_check)
        self.step = self.maker.make()
        self.batch_start = events.hook("on_train_batch_start")
        self.batch_end = mark_steps(run.profiler, events.hook("on_train_batch_end"))
        # by default a plain loss is handed on without a call
        shape = type(run.loop_policy).step_outputs
        self.shapes_outputs = shape is not LoopPolicy.step_outputs
        self.transfer = run.make_transfer()
        self.schedule = ValidationSchedule(run)
        self.log_every = self.max_steps = math.inf
        if run.stage_loggers:
            self.log_every = options.log_every_n_steps
        if options.max_steps >= 0:
            self.max_steps = options.max_steps
        self.begins_at = self.progress.total_batches

    # epochs ---------------------------------------------------------------------------------------

    def _run_epoch(self) -> None:
        run, progress = self._run, self.progress
        run.metrics = run.logged.train
        # Within an epoch, the random state is restored once the loader was opened.
        if progress.batch == 0:
            self.batches.restore_random_state()
        run.loaders.begin_epoch(progress.epoch)
        run.set_window()
        if progress.batch == 0:
            self._emit("on_train_epoch_start")
        self._apply_changes()
        self.no_update_check.begin_epoch()
        is_over = self._run_batches()
        self.step.weight = run.logged.train.share = None
        run.logged.losses.look_at_output(self.maker.outputs, run.module, self.strategy)
        if is_over:
            self._end_epoch()
        else:
            publish_epoch(run, run.logged.train, is_over=False)

    def _end_epoch(self) -> None:
        """End the epoch. Not called where a limit is reached within it: a resumed run has the rest
        of it to do.
        """
        run, progress = self._run, self.progress
        show_epoch(run, run.logged.train)
        progress.epoch_is_ending = True
        self._emit("on_train_epoch_end", last=False)
        publish_epoch(run, run.logged.train)
        for item in self.plateaus:
            item.renewed_by.add("epoch")
        step_schedulers(run, self.epoch_schedulers, progress.epoch + 1)
        step_waiting(run, self.plateaus)
        progress.epoch_is_ending, progress.epoch_is_over = False, True
        self._emit("on_train_epoch_end", last=True)
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
            self.step = self.maker.make()
        self.step.ends_window = True
        if Capability.OWNS_ACCUMULATION not in capabilities:
            self.step.num_accumulated = self._run.accumulate_grad_batches
        manual = self.step.manual
        self.step_schedulers = schedulers_by(self._run, "step", manual=manual)
        self.epoch_schedulers = schedulers_by(self._run, "epoch", manual=manual)
        self.plateaus = [
            item for item in (*self.step_schedulers, *self.epoch_schedulers) if takes_metric(item)
        ]

    def _emit(self, name: str, **which: bool) -> None:
        self._run.logged.train.on_epoch_default = True
        self._run.events.emit(name, **which)
        self._run.logged.train.on_epoch_default = False

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
        signals, metrics, maker = run.signals, run.logged.train, self.maker
        fetch: Callable[..., object] = run.profiled("fetch_batch", next)
        train: Callable[..., StepOutput] = run.profiled(
            "run_training_step", self.strategy.run_training_step
        )
        batches, uneven = self.batches.open(), self.batches.uneven
        micro_batch: MicroBatch | None = None
        num_batches, window = self.batches.num_batches, run.window
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
            ends_short = micro_batch is not None and micro_batch.ends_window
            is_whole = batch_idx + 1 - progress.window_start >= window
            step.ends_window = is_whole or ends_short or batch_idx + 1 == num_batches
            if self.batch_start is not None and self.batch_start(batch, batch_idx) == -1:
                self._drop_window()
                return True
            # An engine may take several batches in its step. Optimizers that a module steps itself
            # count by themselves.
            steps_before = progress.global_step
            if step.weight == 0:
                output = self._join(train, batch, batch_idx)
            else:
                output = train(batch, batch_idx, step)
            if metrics.held is not None:  # until a loss has come without a weight
                metrics.release(maker.outputs)
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
                if self.shapes_outputs or type(maker.outputs) is not Tensor:
                    outputs = run.loop_policy.step_outputs(maker.outputs, output.loss)
                self.batch_end(outputs, batch, batch_idx - output.num_batches)
            if stepped and progress.global_step // self.log_every > steps_before // self.log_every:
                publish_step(run, maker.outputs)
            if self.is_validation_due is not None and self.is_validation_due(batch_idx):
                self._validate()
            # Checkpoints and stops come between two optimizer steps only.
            if step.ends_window:
                if run.pending_saves:
                    self._write_pending()
                looks = batch_idx >= stops.look_at
                if looks:
                    stops.look(batch_idx)
                may_stop = looks or progress.global_step >= self.max_steps
                if may_stop and batch_idx < num_batches and self._is_done():
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
            raise ConfigurationError(
                f"The training loader ({type(run.loaders.train).__name__}) gave no batch in this "
                "epoch: it is empty, or an iterator that can be read once. Pass what can be "
                "iterated over in every epoch, such as a DataLoader."
            )
        self.no_update_check.end_epoch(num_batches)
        if not run.loaders.knows_length and self.batches.line is None and run.session.has_peers:
            # where the watch sees a rank that is out of data
            self.strategy.barrier("the end of an epoch")
        if run.loop_policy.asks_beyond_length and num_batches == length_of(run.loaders.train):
            # as a `for` loop asks once more: the order of some samplers depends on it
            next(batches, None)
        if self.schedule.is_due_after_epoch():
            self._validate()

    def _end_cut_epoch(self) -> bool:
        """All ranks, where a stop has cut an epoch that is to end as a whole one does."""
        asked = self.stops.is_asked and self._run.has_reached_least
        if asked and self.schedule.is_due_after_epoch(is_cut=True):
            self._validate()
        return True

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
        run, progress = self._run, self.progress
        place = self.strategy.accelerator, self.strategy.root_device
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
