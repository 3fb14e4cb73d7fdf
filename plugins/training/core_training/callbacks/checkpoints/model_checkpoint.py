"""Writes checkpoints while training goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from core.contract import ConfigurationError
from core_training.callbacks.arguments import (
    check_arguments,
    check_mode,
    format_name,
    replaces_another,
)
from core_training.callbacks.checkpoints.files import (
    TopKCheckpoints,
    can_link,
    clean_up,
    find_free_path,
    is_there,
    link_checkpoint,
    refuse_other_form,
    retire_checkpoint,
)
from core_training.callbacks.checkpoints.on_exception_checkpoint import can_save_after, save_after
from core_training.callbacks.rank_zero_decisions import (
    agree_on_metrics,
    not_logged,
    origin_of,
    validates_within_epochs,
)
from core_training.hooks.callback import Callback
from core_training.settings.duration import parse_duration
from core_training.settings.warn_at import warn_caller
from core_training.signals.exchange_interval import PeriodicVote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from torch import Tensor, nn

    from core.contract import PathLike
    from core_training.views.trainer_views import TrainerViews


class ModelCheckpoint(Callback):
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
        best_model_score: its score, a scalar tensor; None without `monitor`.
        best_k_models: scores of those that are kept, by path.
        last_model_path: what `save_last` wrote.
    """

    runs_last = True
    found_as = "checkpoint_callback"
    leaves_traces = True

    CHECKPOINT_NAME_LAST = "last"
    """Filename, or pattern, of what `save_last` writes."""
    CHECKPOINT_JOIN_CHAR = "-"
    """Stands between the parts of a name that this class makes: epoch, step, and version."""
    CHECKPOINT_EQUALS_CHAR = "="
    """Stands between the name of a value and the value."""
    FILE_EXTENSION = ".ckpt"
    """Ends every name."""
    STARTING_VERSION = 1
    """Number of the second checkpoint of one name, as in `last-v1.ckpt`."""

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
            save_on_exception: save before an exception ends the run: under `filename`, if it was
                given and all its fields are logged, else as `exception-epoch=1-step=5.ckpt`. With
                several processes that can't be done, since the others go on waiting for each other;
                a warning says so.
            auto_insert_metric_name: write `name=` before each value of the pattern.
            enable_version_counter: append `-v1`, `-v2`, ... if the file is there already; else
                overwrite it.
            verbose: print a line on rank 0 for each checkpoint.

        Raises:
            ConfigurationError: arguments that contradict each other.
        """
        given = {"every_n_train_steps": every_n_train_steps, "every_n_epochs": every_n_epochs}
        check_arguments(given, train_time_interval, monitor, save_top_k, save_last)
        check_mode("ModelCheckpoint", mode)
        self._given_dirpath = os.path.expanduser(dirpath) if dirpath is not None else None
        self.dirpath = self._given_dirpath
        self.filename = filename
        self.monitor, self.mode, self.save_top_k, self.save_last = (
            monitor,
            mode,
            save_top_k,
            save_last,
        )
        self.every_n_train_steps, self.every_n_epochs = every_n_train_steps, every_n_epochs
        self.train_time_interval = (
            None
            if train_time_interval is None
            else parse_duration("train_time_interval", train_time_interval)
        )
        if not every_n_train_steps and self.train_time_interval is None and every_n_epochs is None:
            self.every_n_epochs = 1
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.save_weights_only, self.save_on_exception = save_weights_only, save_on_exception
        self.auto_insert_metric_name, self.enable_version_counter = (
            auto_insert_metric_name,
            enable_version_counter,
        )
        self.verbose = verbose
        self._beginning = ""
        self.reset_for_fit()
        # Hooks that most runs don't need, and so shouldn't pay for in every step.
        if every_n_train_steps or self.train_time_interval is not None:
            self.on_train_batch_end = self._save_within_epoch  # type: ignore[method-assign]

    def reset_for_fit(self) -> None:
        """Nothing was saved yet. Files of a fit before stay."""
        self.last_model_path = ""
        self._newest_path = ""
        self._best = TopKCheckpoints(self.mode, self.save_top_k)
        self._best_so_far: tuple[str, float] | None = None
        self._named_path: str | None = None
        self._last_score: float | None = None
        self._obsolete: list[tuple[str, str]] = []
        self._unwritten: list[tuple[str, str]] = []
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
    def best_model_path(self) -> str:
        """The best checkpoint; without `monitor` the newest. Empty if there is none.

        It can be set, as where the checkpoint was moved to; that holds until a better, or newer,
        one is saved.
        """
        if self._named_path is not None:
            return self._named_path
        return self._best_so_far[0] if self._best_so_far else self._newest_path

    @best_model_path.setter
    def best_model_path(self, path: PathLike) -> None:
        self._named_path = os.fspath(path)

    @property
    def best_model_score(self) -> Tensor | None:
        """The best checkpoint's score, a scalar; None without `monitor`."""
        return (
            torch.tensor(self._best_so_far[1], dtype=torch.float64) if self._best_so_far else None
        )

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """Scores of the checkpoints that are kept, by path."""
        return {
            path: torch.tensor(score, dtype=torch.float64)
            for path, score in self._best.scores.items()
        }

    @property
    def kth_best_model_path(self) -> str:
        """The worst of the checkpoints that are kept: the next to be replaced."""
        return self._best.worst_path

    @property
    def current_score(self) -> Tensor | None:
        """The monitored value that was judged last, a scalar; None without `monitor`, or before the
        first.
        """
        return (
            None
            if self._last_score is None
            else torch.tensor(self._last_score, dtype=torch.float64)
        )

    @property
    def kth_value(self) -> Tensor | None:
        """The score of `kth_best_model_path`, a scalar; None if there is none."""
        score = self._best.scores.get(self._best.worst_path)
        return None if score is None else torch.tensor(score, dtype=torch.float64)

    def to_yaml(self, filepath: PathLike | None = None) -> None:
        """Rank 0. Write the scores of the checkpoints that are kept, by path.

        Args:
            filepath: a local file; None is `best_k_models.yaml` in `dirpath`.
        """
        path = (
            filepath
            if filepath is not None
            else os.path.join(self.dirpath or "", "best_k_models.yaml")
        )
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._best.to_yaml())

    def state_dict(self) -> dict[str, Any]:
        """The paths of the checkpoints, and their scores."""
        return {
            "dirpath": self.dirpath,
            "best_k_models": dict(self._best.scores),
            "best": list(self._best_so_far) if self._best_so_far else None,
            "newest_path": self._newest_path,
            "last_model_path": self.last_model_path,
            "named_path": self._named_path,
            "waits": self._waits,
            "obsolete": list(map(list, self._obsolete)),
            "unwritten": list(map(list, self._unwritten)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Checkpoints in another folder belong to another run,
        and stay there.
        """
        best = state["best"]
        self._best_so_far = (best[0], best[1]) if best else None
        self._named_path, self._waits = state.get("named_path"), state.get("waits", False)
        if self.dirpath is None or self.dirpath == state["dirpath"]:
            self.dirpath = state["dirpath"]
            self._best.scores = dict(state["best_k_models"])
            self._newest_path, self.last_model_path = state["newest_path"], state["last_model_path"]
            self._obsolete = [(path, successor) for path, successor in state.get("obsolete", ())]
            self._unwritten = [(path, target) for path, target in state.get("unwritten", ())]

    # when -----------------------------------------------------------------------------------------

    def check_fit(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Refuse to write over the checkpoints of another one.

        Raises:
            ConfigurationError: both have one folder and pattern, and this one doesn't count
                versions.
        """
        own = self._place()
        if not self.enable_version_counter and own in [
            each._place() for each in _savers(trainer) if each is not self
        ]:
            raise replaces_another(os.path.join(*map(str, own[:2])))

    def _place(self) -> tuple[object, ...]:
        """The options from which the paths of its best checkpoints follow; itself where it keeps
        none.
        """
        names = (
            self._pattern(),
            self.auto_insert_metric_name,
            self.CHECKPOINT_EQUALS_CHAR,
            self.FILE_EXTENSION,
        )
        return (os.path.abspath(self._given_dirpath or ""), *names) if self.save_top_k else (self,)

    def setup(self, trainer: TrainerViews, module: nn.Module, stage: str) -> None:
        """All ranks. Agree on the folder, and delete what a run that was killed has left there."""
        if stage == "fit":
            self._unwritten, self._beginning = [], str(trainer.ckpt_path)
            self.dirpath = self._given_dirpath or posixpath.join(trainer.log_dir, "checkpoints")
            clean_up(trainer, self.dirpath)

    def on_train_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Note where training begins: nothing is saved before its first step."""
        self._first_step = self._judged_step = self._last_step = self._step_seen = (
            trainer.global_step
        )
        if self._waits:  # as the checkpoint says from which training goes on
            self._judged_step = -1
        self._obsolete = [each for each in self._obsolete if is_there(trainer, each[0])]
        refuse_other_form(trainer, self._constant_paths())
        # A run that was killed before it wrote them has this state in another callback's
        # checkpoint.
        self._unwritten = [each for each in self._unwritten if not is_there(trainer, each[0])]
        self._write(trainer)
        self._saved_s = time.monotonic()
        self._after_epoch = self.save_on_train_epoch_end
        if self._after_epoch is None:
            self._after_epoch = not validates_within_epochs(trainer)

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
        step, before = trainer.global_step, self._step_seen
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
        return (
            bool(self.every_n_epochs)
            and (trainer.current_epoch + 1) % (self.every_n_epochs or 1) == 0
        )

    def on_train_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Save what training ends with, unless that is done."""
        was_due = self._waits
        self._judge(trainer, is_summed_up=True)
        self._remove_obsolete(trainer)
        if (
            was_due
            and self._waits
            and self.best_model_path
            and not self.save_last
            and trainer.is_global_zero
        ):
            warn_caller(
                "ModelCheckpoint has not kept what was due before training ended with step "
                f"{trainer.global_step}: no validation came after it, to judge it by "
                f"{self.monitor!r}. Validate more often, or pass save_last=True."
            )
        self._waits = False
        has_trained = trainer.global_step != self._first_step
        if (
            has_trained
            and self.monitor is not None
            and self.save_top_k
            and not self.best_model_path
        ):
            warn_caller(
                f"ModelCheckpoint has kept nothing as the best: it monitors {self.monitor!r}, "
                "which was not logged before training ended. Validate earlier, or monitor "
                "something else."
            )

    def on_exception(
        self, trainer: TrainerViews, module: nn.Module, exception: BaseException
    ) -> None:
        """Save what there is, if the user wants that."""
        wanted = (
            self.save_on_exception
            and trainer.stage == "fit"
            and trainer.global_step != self._judged_step
        )
        if wanted and can_save_after(trainer, exception):
            assert self.dirpath is not None
            # with versions in any case: it may be no good state
            names = self._names(self._exception_name(trainer))
            path = find_free_path(trainer, self.dirpath, names, own="", taken=())
            save_after(trainer, path, exception, weights_only=self.save_weights_only)

    def _exception_name(self, trainer: TrainerViews) -> str:
        if self.filename is not None:
            # the run may end before a field is logged
            with contextlib.suppress(ConfigurationError):
                return self._format(
                    self.filename, {**agree_on_metrics(trainer), **_counters(trainer)}
                )
        return self.CHECKPOINT_JOIN_CHAR.join(
            ["exception", self._format(self._default_pattern(), _counters(trainer))]
        )

    # what -----------------------------------------------------------------------------------------

    def _judge(self, trainer: TrainerViews, *, is_summed_up: bool = False) -> None:
        """Save the present state if it is good enough; never one state twice.

        Args:
            trainer: the running trainer.
            is_summed_up: the means of the training epoch are there.
        """
        if trainer.global_step == self._judged_step:
            return
        # What a save at a window's end has replaced, which is written by now.
        self._remove_obsolete(trainer)
        values = {**agree_on_metrics(trainer), **_counters(trainer)}
        self._saved_s = time.monotonic()
        self._waits = bool(self.save_top_k) and self._must_wait(trainer, values, is_summed_up)
        if not self._waits:
            self._judged_step = trainer.global_step
        saved = self._save_ranked(trainer, values) if self.save_top_k and not self._waits else ""
        # it isn't held back where the other one waits
        is_new = self._last_step != trainer.global_step
        if self.save_last and (is_new or (saved and self.save_last == "link")):
            self._last_step = trainer.global_step
            old = self.last_model_path
            path = self.last_model_path = self._path_for(
                trainer, self.CHECKPOINT_NAME_LAST, values, own=old
            )
            self._replace(path, old, target=saved if self.save_last == "link" else "")
        # Other checkpoint callbacks judge this state too, and what they find belongs to it.
        trainer.events.afterwards(partial(self._write, trainer))

    def _save_ranked(self, trainer: TrainerViews, values: dict[str, float]) -> str:
        """The path of what was saved, empty if it isn't good enough."""
        if self.monitor is None:
            old = self._newest_path if self.save_top_k == 1 else ""
            path = self._newest_path = self._path_for(trainer, self._pattern(), values, own=old)
            self._named_path = None
            self._replace(path, old)
            return path
        self._last_score = values[self.monitor]
        if not self._best.accepts(self._last_score):
            return ""
        old = self._best.worst_path if len(self._best.scores) == self.save_top_k else ""
        path = self._path_for(trainer, self._pattern(), values, own=old)
        evicted = self._best.add(path, values[self.monitor])
        if self._best.best_path == path:
            self._named_path = None
        self._best_so_far = (self._best.best_path, self._best.scores[self._best.best_path])
        self._replace(path, evicted)
        return path

    def _must_wait(
        self, trainer: TrainerViews, values: dict[str, float], is_summed_up: bool
    ) -> bool:
        """True if the monitored metric of this state is still to come, from a validation or at the
        epoch's end.
        """
        if self.monitor is None or self.monitor in ("epoch", "step"):
            return False
        origin = origin_of(trainer, self.monitor)
        if (origin == "validation" and self._validated_step != trainer.global_step) or (
            origin == "epoch" and not is_summed_up
        ):
            return True
        if self.monitor not in values and origin in (None, "validation"):
            raise not_logged("ModelCheckpoint", self.monitor, values)
        return self.monitor not in values

    def _replace(self, path: str, old: str | None, *, target: str = "") -> None:
        """Note a checkpoint to write, perhaps as a link to `target`, and the one that it
        replaces.
        """
        self._unwritten.append((path, target))
        # What the user has named as the run's beginning stays: a job that is run again begins there
        # again.
        if old and old not in (path, self._beginning):
            self._obsolete.append((old, path))

    def _write(self, trainer: TrainerViews) -> None:
        """Write the new ones, then remove the old ones; if this run is killed in between, one that
        goes on does it.
        """
        while self._unwritten:
            path, target = self._unwritten.pop(0)
            if target and can_link(trainer, target):
                link_checkpoint(trainer, target, path)
            else:
                trainer.save_checkpoint(path, weights_only=self.save_weights_only)
                if self.verbose:
                    trainer.print(f"ModelCheckpoint: step {trainer.global_step} is saved in {path}")
            if self.save_last != "link":  # which may lead to the old one, until it is moved
                self._remove_obsolete(trainer)
        self._remove_obsolete(trainer)

    def _remove_obsolete(self, trainer: TrainerViews) -> None:
        """Remove what was replaced; not yet if the new one is still to be written, perhaps at a
        window's end.
        """
        if not trainer.run.pending_saves:
            unwritten = dict(self._unwritten)
            written = [each for each in self._obsolete if each[1] not in unwritten]
            for path, successor in written:
                retire_checkpoint(trainer, path, successor)
            self._obsolete = [each for each in self._obsolete if each not in written]

    # where ----------------------------------------------------------------------------------------

    def _path_for(
        self, trainer: TrainerViews, pattern: str, values: dict[str, float], *, own: str
    ) -> str:
        """All ranks. The path of a checkpoint that may take the place of `own`, and of no other
        one's best.
        """
        assert self.dirpath is not None
        name, savers = self._format(pattern, values), _savers(trainer)
        if self.enable_version_counter:
            taken = {
                path
                for each in savers
                for path in (*each._best.scores, each._newest_path, each.last_model_path)
            }
            return find_free_path(trainer, self.dirpath, self._names(name), own=own, taken=taken)
        path = posixpath.join(self.dirpath, name + self.FILE_EXTENSION)
        is_last = pattern == self.CHECKPOINT_NAME_LAST
        kept = {
            path for each in savers if is_last or each is not self for path in each._best.scores
        }
        if path != own and path in kept:
            raise replaces_another(path)
        return path

    def _constant_paths(self) -> Iterator[str]:
        """The paths that each save replaces: those it has, and without versions those that don't
        depend on the step.
        """
        last = [(self.CHECKPOINT_NAME_LAST, self.last_model_path)] if self.save_last else []
        for pattern, own in [
            *last,
            *[(self._pattern(), self._newest_path)] * (self.save_top_k == 1),
        ]:
            if "{" not in pattern and (own or not self.enable_version_counter):
                yield own or posixpath.join(str(self.dirpath), pattern + self.FILE_EXTENSION)

    def _pattern(self) -> str:
        return self.filename or self._default_pattern()

    def _default_pattern(self) -> str:
        return self.CHECKPOINT_JOIN_CHAR.join(("{epoch}", "{step}"))

    def _format(self, pattern: str, values: dict[str, float]) -> str:
        equals = self.CHECKPOINT_EQUALS_CHAR if self.auto_insert_metric_name else None
        return format_name(pattern, values, equals=equals)

    def _names(self, name: str) -> Iterator[str]:
        yield name + self.FILE_EXTENSION
        for version in itertools.count(self.STARTING_VERSION):
            yield f"{name}{self.CHECKPOINT_JOIN_CHAR}v{version}{self.FILE_EXTENSION}"


def _savers(trainer: TrainerViews) -> list[ModelCheckpoint]:
    return [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]


def _counters(trainer: TrainerViews) -> dict[str, float]:
    """Epoch and step that the present state belongs to; between two epochs, it is the one that has
    ended.
    """
    between = trainer.progress.batch == 0 and trainer.current_epoch > 0
    return {"epoch": trainer.current_epoch - between, "step": trainer.global_step}
