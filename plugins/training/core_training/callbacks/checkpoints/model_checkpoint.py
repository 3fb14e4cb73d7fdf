"""Writes checkpoints while training goes on."""

from __future__ import annotations

import os
import posixpath
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from core.contract import ConfigurationError
from core_training.callbacks.checkpoints.checkpoint_paths import CheckpointPaths
from core_training.callbacks.checkpoints.on_exception_checkpoint import can_save_after, save_after
from core_training.callbacks.checkpoints.pending_files import PendingFiles
from core_training.callbacks.checkpoints.top_k import TopKCheckpoints
from core_training.callbacks.rank_zero_decisions import (
    agree_on_metrics,
    judges_after_epochs,
    not_logged,
    origin_of,
)
from core_training.settings.callback_arguments import check_choice, check_int
from core_training.settings.duration import parse_duration
from core_training.settings.warn_at import warn_caller
from core_training.signals.exchange_interval import PeriodicVote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from torch import Tensor, nn

    from core.contract import PathLike
    from core_training.views.trainer_views import TrainerViews

_NAME = "ModelCheckpoint"


class ModelCheckpoint(CheckpointPaths):
    """Saves checkpoints and keeps the best, or the newest, of them.

    By default one at the end of every epoch, of which the newest is kept. What training ends with
    is saved in any case, once. An old checkpoint is removed when the new one is safely there, and
    was read back and verified; never before.

    A score belongs to the state that it was measured on. What is due by steps, by a time or at an
    epoch's end, and is judged by a metric of validation, is saved when the next validation has run,
    as it was validated; by the mean of a training epoch, at that epoch's end. Where training ends
    before, it isn't kept, with a warning. `save_last` is never held back.

    Attributes:
        best_model_path: the best checkpoint; without `monitor` the newest. Empty if there is none.
            It can be set, as where the checkpoint was moved to; that holds until the next is kept.
        best_model_score: its score, a scalar tensor; None without `monitor`.
        current_score: the monitored value that was judged last, a scalar tensor; None without
            `monitor`, or before the first.
        last_model_path: what `save_last` wrote.
    """

    runs_last = True
    found_as = "checkpoint_callback"
    leaves_traces = True

    def __init__(
        self,
        dirpath: PathLike | None = None,
        filename: str | None = None,
        *,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        save_top_k: int = 1,
        save_last: bool | Literal["link"] = False,
        every_n_train_steps: int | None = None,
        every_n_epochs: int | None = None,
        train_time_interval: timedelta | Mapping[str, int] | str | None = None,
        save_on_train_epoch_end: bool | None = None,
        save_weights_only: bool = False,
        save_on_exception: bool = False,
        auto_insert_metric_name: bool = True,
        enable_version_counter: bool = True,
        verbose: bool = False,
    ) -> None:
        """Create the callback.

        Args:
            dirpath: a folder or URL; None is `checkpoints` in the logger's folder, or in
                `default_root_dir`.
            filename: pattern with names of metrics, `epoch` and `step`: `"{epoch}-{val_loss:.2f}"`.
                `.ckpt` is added, or what `FILE_EXTENSION` says.
            monitor: the logged metric by which checkpoints are judged; None judges by age. `"step"`
                and `"epoch"` too.
            mode: `"min"` if less of it is better, `"max"` if more is.
            save_top_k: number of the best to keep; -1 for all, 0 for none.
            save_last: also write `last.ckpt` each time; `"link"` makes it a symbolic link where
                that is possible.
            every_n_train_steps: save after every so many optimizer steps.
            every_n_epochs: save after every so many epochs; 1 if neither steps nor a time are
                given.
            train_time_interval: save after every so long, by rank 0's clock.
            save_on_train_epoch_end: save at the end of epochs rather than of validation runs. None:
                if validation, too, runs once at the end of every epoch.
            save_weights_only: leave out what only training needs. Such a checkpoint can't be
                resumed.
            save_on_exception: save before an exception ends the run, as
                `exception-epoch=1-step=5.ckpt`. With several processes that can't be done, since
                the others go on waiting for each other; a warning says so.
            auto_insert_metric_name: write `name=` before each value of the pattern.
            enable_version_counter: append `-v1`, `-v2`, ... if the file is there already; else
                overwrite it.
            verbose: print a line on rank 0 for each checkpoint.

        Raises:
            ConfigurationError: arguments that contradict each other.
        """
        for name, number in (
            ("every_n_train_steps", every_n_train_steps),
            ("every_n_epochs", every_n_epochs),
        ):
            if number is not None:
                check_int(
                    _NAME, name, number, least=0, meaning="a positive number, 0 or None for never"
                )
        if bool(every_n_train_steps) + bool(every_n_epochs) + bool(train_time_interval) > 1:
            raise ConfigurationError(
                f"{_NAME} got more than one of every_n_train_steps, every_n_epochs and "
                "train_time_interval; expected one of them. Use a ModelCheckpoint for each rhythm."
            )
        check_choice(_NAME, "mode", mode, ("min", "max"))
        check_choice(_NAME, "save_last", save_last, (True, False, "link"))
        check_int(_NAME, "save_top_k", save_top_k, least=-1, meaning="a number, or -1 for all")
        if monitor is None and save_top_k > 1:
            raise ConfigurationError(
                f"{_NAME}(save_top_k={save_top_k}) can't tell which are best without monitor. "
                "Name a logged metric (or monitor='step', mode='max' for the newest), or use -1, "
                "0 or 1."
            )
        super().__init__(dirpath, filename, auto_insert_metric_name, enable_version_counter)
        self.monitor = monitor
        self.mode = mode
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_train_steps = every_n_train_steps
        self.train_time_interval = None
        if train_time_interval is not None:
            self.train_time_interval = parse_duration("train_time_interval", train_time_interval)
        self.every_n_epochs = every_n_epochs
        if not every_n_train_steps and train_time_interval is None and every_n_epochs is None:
            self.every_n_epochs = 1
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.save_weights_only = save_weights_only
        self.save_on_exception = save_on_exception
        self.verbose = verbose
        self.reset_for_fit()
        # Hooks that most runs don't need, and so shouldn't pay for in every step.
        if every_n_train_steps or train_time_interval is not None:
            self.on_train_batch_end = self._save_within_epoch  # type: ignore[method-assign]

    def reset_for_fit(self) -> None:
        """Nothing was saved yet. Files of a fit before stay."""
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.current_score: Tensor | None = None
        self.last_model_path = ""
        self._kept = TopKCheckpoints(self.mode, self.save_top_k)
        if self.monitor is None:
            self._kept.mode = "max"  # of steps
        self._pending = PendingFiles()
        self._first_step = self._judged_step = self._last_step = self._step_seen = 0
        self._validated_step: int | None = None
        self._waits = False
        self._saved_s = 0.0
        self._is_time = PeriodicVote()

    # what was saved -------------------------------------------------------------------------------

    @property
    def state_key(self) -> str:
        """Distinguishes several of these in one trainer."""
        return self._key_with(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self.every_n_train_steps or 0,
            every_n_epochs=self.every_n_epochs or 0,
            train_time_interval=str(self.train_time_interval),
        )

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """Scores of the checkpoints that are kept, by path; without `monitor` their steps."""
        return {path: _tensor(score) for path, score in self._kept.scores.items()}

    @property
    def kth_best_model_path(self) -> str:
        """The worst of the checkpoints that are kept: the next to be replaced."""
        return self._kept.worst_path

    def state_dict(self) -> dict[str, Any]:
        """The paths of the checkpoints, and their scores."""
        score = None
        if self.best_model_score is not None:
            score = float(self.best_model_score)
        return {
            "dirpath": self.dirpath,
            "best_k_models": dict(self._kept.scores),
            "best": [os.fspath(self.best_model_path), score],
            "last_model_path": self.last_model_path,
            "waits": self._waits,
            "obsolete": list(map(list, self._pending.obsolete)),
            "unwritten": list(map(list, self._pending.unwritten)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Checkpoints in another folder belong to another run,
        and stay there.
        """
        # A state may have the newest one without a monitor, and a path that was set, apart.
        newest = state.get("newest_path", "")
        path, score = state["best"] or (newest, None)
        self.best_model_path = state.get("named_path") or path
        if score is not None:
            self.best_model_score = _tensor(score)
        self._waits = state.get("waits", False)
        if self.dirpath is None or self.dirpath == state["dirpath"]:
            self.dirpath = state["dirpath"]
            self._kept.scores = dict(state["best_k_models"])
            if newest:
                self._kept.scores[newest] = 0.0
            self.last_model_path = state["last_model_path"]
            self._pending.obsolete = list(map(tuple, state.get("obsolete", ())))
            self._pending.unwritten = list(map(tuple, state.get("unwritten", ())))

    # when -----------------------------------------------------------------------------------------

    def setup(self, trainer: TrainerViews, module: nn.Module, stage: str) -> None:
        """All ranks. Agree on the folder, and delete what a run that was killed has left there."""
        if stage == "fit":
            self._pending.unwritten = []
            self._pending.beginning = str(trainer.ckpt_path)
            self.dirpath = self._given_dirpath or posixpath.join(trainer.log_dir, "checkpoints")
            if trainer.is_global_zero and os.path.isdir(self.dirpath):
                from core.checkpoint import sweep_folder  # a new folder has nothing to delete

                sweep_folder(self.dirpath)

    def on_train_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Note where training begins: nothing is saved before its first step."""
        step = trainer.global_step
        self._first_step = self._judged_step = self._last_step = self._step_seen = step
        if self._waits:  # as the checkpoint says from which training goes on
            self._judged_step = -1
        self._pending.look_again(trainer)
        self._write(trainer)
        self._saved_s = time.monotonic()
        self._after_epoch = judges_after_epochs(trainer, self.save_on_train_epoch_end)

    def _save_within_epoch(
        self,
        trainer: TrainerViews,
        module: nn.Module,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Within an accumulation window there is nothing to save: only a new optimizer step
        counts.
        """
        step = trainer.global_step
        before = self._step_seen
        if step == before:
            return
        self._step_seen = step
        if self.every_n_train_steps:  # several steps may have been made since then
            due = step // self.every_n_train_steps > before // self.every_n_train_steps
        else:
            due = self._is_time.ask(trainer.strategy, self._is_interval_over)
        if due:
            self._judge(trainer)

    def _is_interval_over(self) -> bool:
        assert self.train_time_interval is not None
        return time.monotonic() - self._saved_s >= self.train_time_interval.total_seconds()

    def on_validation_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Save, if validation has a rhythm of its own, or a save has waited for it."""
        if trainer.stage != "fit" or trainer.sanity_checking:
            return
        self._validated_step = trainer.global_step
        if self._waits or (not self._after_epoch and self._is_due_by_epoch(trainer)):
            self._judge(trainer)

    def on_train_epoch_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Save, if validation has no rhythm of its own, or a save has waited for the epoch's
        mean.
        """
        if self._waits or (self._after_epoch and self._is_due_by_epoch(trainer)):
            self._judge(trainer, is_summed_up=True)

    def _is_due_by_epoch(self, trainer: TrainerViews) -> bool:
        every = self.every_n_epochs or 0
        return every > 0 and (trainer.current_epoch + 1) % every == 0

    def on_train_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Save what training ends with, unless that is done."""
        was_due = self._waits
        self._judge(trainer, is_summed_up=True)
        self._pending.remove_obsolete(trainer)
        still_waits = was_due and self._waits and not self.save_last
        self._waits = False
        if self.monitor is None or not self.save_top_k:
            return
        if not self.best_model_path and trainer.global_step != self._first_step:
            warn_caller(
                f"{_NAME} has kept nothing as the best: it monitors {self.monitor!r}, "
                "which was not logged before training ended. Validate earlier, or monitor "
                "something else."
            )
        elif self.best_model_path and still_waits and trainer.is_global_zero:
            warn_caller(
                f"{_NAME} has not kept what was due before training ended with step "
                f"{trainer.global_step}: no validation came after it, to judge it by "
                f"{self.monitor!r}. Validate more often, or pass save_last=True."
            )

    def on_exception(
        self, trainer: TrainerViews, module: nn.Module, exception: BaseException
    ) -> None:
        """Save what there is, if the user wants that."""
        is_wanted = self.save_on_exception and trainer.stage == "fit"
        if not is_wanted or trainer.global_step == self._judged_step:
            return
        if can_save_after(trainer, exception):
            # with versions in any case: it may be no good state
            pattern = self.CHECKPOINT_JOIN_CHAR.join(["exception", self._default_pattern()])
            path = self._free_path(trainer, pattern, _counters(trainer))
            save_after(trainer, path, exception, weights_only=self.save_weights_only)

    # what -----------------------------------------------------------------------------------------

    def _judge(self, trainer: TrainerViews, *, is_summed_up: bool = False) -> None:
        """Save the present state if it is good enough; never one state twice.

        Args:
            trainer: the running trainer.
            is_summed_up: the means of the training epoch are there.
        """
        step = trainer.global_step
        if step == self._judged_step:
            return
        # What a save at a window's end has replaced, which is written by now.
        self._pending.remove_obsolete(trainer)
        values = {**agree_on_metrics(trainer), **_counters(trainer)}
        self._saved_s = time.monotonic()
        saved = ""
        self._waits = bool(self.save_top_k) and self._must_wait(trainer, values, is_summed_up)
        if not self._waits:
            self._judged_step = step
            if self.save_top_k:
                saved = self._save_ranked(trainer, values)
        # It isn't held back where the other one waits.
        is_new = self._last_step != step
        if self.save_last and (is_new or (saved and self.save_last == "link")):
            self._last_step = step
            old = self.last_model_path
            self.last_model_path = self._path_for(
                trainer, self.CHECKPOINT_NAME_LAST, values, own=old
            )
            if self.save_last != "link":
                saved = ""
            self._pending.replace(self.last_model_path, old, target=saved)
        # Other checkpoint callbacks judge this state too, and what they find belongs to it.
        trainer.events.afterwards(partial(self._write, trainer))

    def _save_ranked(self, trainer: TrainerViews, values: dict[str, float]) -> str:
        """The path of what was saved, empty if it isn't good enough."""
        score = values[self.monitor or "step"]
        if self.monitor is not None:
            self.current_score = _tensor(score)
            if not self._kept.accepts(score):
                return ""
        path = self._path_for(trainer, self._pattern(), values, own=self._kept.next_out)
        evicted = self._kept.add(path, score)
        self.best_model_path = path  # without a monitor, also where steps begin anew
        if self.monitor is not None:
            self.best_model_path = self._kept.best_path
            self.best_model_score = _tensor(self._kept.scores[self.best_model_path])
        self._pending.replace(path, evicted)
        return path

    def _must_wait(
        self, trainer: TrainerViews, values: dict[str, float], is_summed_up: bool
    ) -> bool:
        """True if the monitored metric of this state is still to come, from a validation or at the
        epoch's end.
        """
        if self.monitor in (None, "epoch", "step"):
            return False
        origin = origin_of(trainer, self.monitor)
        if origin == "validation" and self._validated_step != trainer.global_step:
            return True
        if origin == "epoch" and not is_summed_up:
            return True
        if self.monitor not in values and origin in (None, "validation"):
            raise not_logged(_NAME, self.monitor, values)
        return self.monitor not in values

    def _write(self, trainer: TrainerViews) -> None:
        """Write the new ones, and remove the old ones."""
        # A link may lead to the old one, until it is moved.
        self._pending.write(trainer, partial(self._save, trainer), at_once=self.save_last != "link")

    def _save(self, trainer: TrainerViews, path: str) -> None:
        trainer.save_checkpoint(path, weights_only=self.save_weights_only)
        if self.verbose:
            trainer.print(f"{_NAME}: step {trainer.global_step} is saved in {path}")


def _counters(trainer: TrainerViews) -> dict[str, float]:
    """Epoch and step that the present state belongs to; between two epochs, it is the one that has
    ended.
    """
    between = trainer.progress.batch == 0 and trainer.current_epoch > 0
    return {"epoch": trainer.current_epoch - between, "step": trainer.global_step}


def _tensor(score: float) -> Tensor:
    return torch.tensor(score, dtype=torch.float64)
