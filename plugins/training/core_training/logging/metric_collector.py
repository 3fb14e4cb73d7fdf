"""The values that the user logs: collected on the device without a wait, reduced when they are
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.contract import ModuleError
from core.data import is_ambiguous, size_of
from core_training.logging import log_errors
from core_training.logging.epoch_reduction import EpochReduction
from core_training.logging.metric_entry import REDUCTIONS, Entry
from core_training.logging.non_finite_losses import weight_in
from core_training.logging.scalar_widths import reduce_weighted, to_tensor, widen
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core.contract import Strategy
    from core_training.logging.metric_entry import LogOptions


@dataclass(slots=True)
class MetricCollector:
    """The values that one stage logs.

    Attributes:
        on_epoch_default: True if a value counts for the epoch (evaluation, hooks around epochs),
            False for its step.
        is_open: values can be logged now.
        sync_step: reduces the value of one step over ranks, for `sync_dist=True`; None if there is
            nothing to reduce.
        batch: the running batch; its size weighs a mean.
        weight: of the running batch, as its step gave it: it weighs a mean in place of the batch's
            size. None where none was given, or is given still.
        held: entries and values of the running step, whose weight isn't known before it returns;
            None where steps give no weights.
        share: what it weighs by its samples among those of other ranks; None where they weigh
            alike. One of weight 0 counts in nothing.
        dataloader_idx: which of several loaders is running, None if there is one.
        has_weighed: True once the size of a batch was determined, with a warning if that is
            uncertain.
        collectors: of all stages, this one among them.
        reduction: of the epoch.
    """

    on_epoch_default: bool
    entries: dict[str, Entry] = field(default_factory=dict)
    is_open: bool = False
    sync_step: Callable[[object, str], object] | None = None
    batch: Any = None
    weight: float | Tensor | None = None
    held: list[tuple[Entry, object]] | None = None
    share: float | None = None
    dataloader_idx: int | None = None
    has_weighed: bool = False
    collectors: Sequence[MetricCollector] = ()
    reduction: EpochReduction = field(default_factory=EpochReduction)

    def open(
        self, *, on_epoch_default: bool, strategy: Strategy | None = None, holds: bool = False
    ) -> None:
        """Begin to collect values.

        Args:
            on_epoch_default: see the attribute.
            strategy: over whose ranks single steps are reduced where that is asked for: all ranks
                make the same steps.
            holds: steps may say what their batches weigh.
        """
        self.is_open, self.on_epoch_default = True, on_epoch_default
        self.weight, self.held = None, [] if holds else None
        if strategy is not None and strategy.session.has_peers:
            self.sync_step = partial(_reduce_step, strategy)

    def close(self) -> None:
        """Make logging an error from now on."""
        self.is_open, self.sync_step = False, None

    def reset(self) -> None:
        """Another stage begins, perhaps with another module: names may be logged in another way."""
        self.entries.clear()
        self.reduction.clear()
        # also what an error within an evaluation has left
        self.has_weighed, self.share, self.dataloader_idx, self.batch = False, None, None, None
        self.close()

    def log(
        self,
        name: str,
        value: Any,
        options: LogOptions,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
    ) -> None:
        """Record a value; see `core.Module.log`."""
        if not self.is_open:
            raise ModuleError(
                f"self.log({name!r}) was called outside of the training, validation or test that a "
                "Trainer runs, where nothing is collected. Log in a training, validation or test "
                "step, or in a hook between on_train_start and on_train_epoch_end, or "
                "on_validation_start and on_validation_epoch_end."
            )
        if self.dataloader_idx is not None and add_dataloader_idx:
            name = f"{name}/dataloader_idx_{self.dataloader_idx}"
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = self._make_entry(name, value, options)
        # The arguments as they were written, in one comparison for nearly every call; what they
        # mean is looked at only then.
        elif entry.options != options or entry.default is not self.on_epoch_default:
            self._compare(entry, options)
        if self.share == 0 and not entry.syncs_steps:
            return
        entry.is_fresh = True
        if entry.is_stepwise and type(value) is Tensor and value.is_cpu and not value.ndim:
            # A number is copied without a kernel, and its format makes the tensor of it again.
            entry.last, entry.last_dtype = value.item(), value.dtype
            return
        entry.last_dtype = None
        if not isinstance(value, Tensor | float | int):
            if _is_metric(value):
                log_errors.check_metric(entry, value)
                return
            value = _as_number(name, value)
        if entry.metric is not None:
            log_errors.check_metric(entry, value)
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ModuleError(
                    f"self.log({name!r}) got a tensor of shape {tuple(value.shape)}; expected one "
                    "number. Reduce it first, for example with .mean()."
                )
            value = value.detach()
        waits = (
            self.held is not None
            and batch_size is None
            and self.batch is not None
            and entry.reduce_fx == "mean"
        )
        if not entry.syncs_steps or self.sync_step is None:
            entry.last = value.clone() if entry.on_step and isinstance(value, Tensor) else value
        elif not waits:
            if self.share is None:
                entry.last = self.sync_step(value, entry.reduce_fx)
            else:
                self._reduce_weighted(entry, value, self.share)
        if waits and self.weight is not None:
            self._add_weighted(entry, value, self.weight)
        elif waits and self.held is not None:
            self.held.append((entry, value.clone() if isinstance(value, Tensor) else value))
        elif entry.on_epoch and self.share != 0:
            entry.add(value, self._weight_of(entry, batch_size))

    def _reduce_weighted(self, entry: Entry, value: Any, weight: float | Tensor) -> None:
        """All ranks. Reduce a value of one step over them, by what their batches weigh."""
        if entry.syncs_steps and self.sync_step is not None:
            entry.last = reduce_weighted(
                value, entry.reduce_fx, 0 if self.share == 0 else weight, self.sync_step
            )

    def _add_weighted(self, entry: Entry, value: Any, weight: float | Tensor) -> None:
        """Add a mean with the weight that the running step gave."""
        self._reduce_weighted(entry, value, weight)
        if entry.on_epoch and self.share != 0:
            entry.add_weighted(value, weight)

    def release(self, output: object) -> None:
        """Add what the running step has logged, with the weight that its output has.

        Args:
            output: of the step. One without a weight decides that its batches weigh their samples;
                None decides nothing.
        """
        held, self.held = self.held or (), None
        self.weight = weight_in(output)
        for entry, value in held:
            if self.weight is not None:
                self._add_weighted(entry, value, self.weight)
            elif options := entry.options:
                self.log(entry.name, value, options, add_dataloader_idx=False)
        if output is None or self.weight is not None:
            self.held = []

    def _weight_of(self, entry: Entry, batch_size: int | None) -> float:
        """The weight of the running batch's value."""
        if entry.reduce_fx != "mean" or (batch_size is None and self.batch is None):
            return 1
        if batch_size is not None:
            return batch_size if type(batch_size) is int else float(batch_size)
        size = size_of(self.batch)
        if not self.has_weighed:
            self.has_weighed = True
            if size is None or is_ambiguous(self.batch):
                warn_caller(log_errors.describe_size(entry.name, self.batch, size))
        return 1 if size is None else size

    def _make_entry(self, name: str, value: Any, options: LogOptions) -> Entry:
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only = options
        reduction = str(getattr(reduce_fx, "__name__", reduce_fx))
        reduction = {"amin": "min", "amax": "max", "avg": "mean"}.get(reduction, reduction)
        if reduction not in REDUCTIONS:
            raise ModuleError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): expected one of "
                f"{', '.join(REDUCTIONS)}."
            )
        by_step, by_epoch = self._resolve(on_step, on_epoch)
        if not (by_epoch or by_step):
            raise ModuleError(
                f"self.log({name!r}): on_step and on_epoch are both False. Expected at least one "
                "True."
            )
        entry = Entry(
            name, by_step, by_epoch, prog_bar, logger, reduction, sync_dist, rank_zero_only, options
        )
        entry.default, entry.dataloader_idx = self.on_epoch_default, self.dataloader_idx
        entry.in_batch = self.batch is not None
        entry.syncs_steps = by_step and sync_dist is True and not rank_zero_only
        entry.is_stepwise = not by_epoch and not entry.syncs_steps
        if _is_metric(value):
            entry.metric, entry.is_stepwise = value, False
            if by_step and not by_epoch:
                log_errors.check_called(name, value)
            log_errors.check_alone(entry, self.collectors, self)
        return entry

    def _resolve(self, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
        if on_step is None:
            on_step = not self.on_epoch_default
        if on_epoch is None:
            on_epoch = self.on_epoch_default
        return on_step, on_epoch

    def _compare(self, entry: Entry, options: LogOptions) -> None:
        """Check a call from another hook, or after a restart, against the options of the first
        one.
        """
        if not entry.options:
            entry.options, entry.default = options, self.on_epoch_default
            return
        # `on_step` and `on_epoch`, where they stand in `options`.
        by_step, by_epoch = self._resolve(*options[2:4])
        if entry.options != options or (by_step, by_epoch) != (entry.on_step, entry.on_epoch):
            raise ModuleError(log_errors.describe_conflict(entry, options, by_step, by_epoch))

    def step_values(self) -> dict[str, Any]:
        """The newest value of everything that is logged by step, as it is."""
        return _newest(entry for entry in self.entries.values() if entry.on_step)

    def fresh_values(self) -> dict[str, Any]:
        """The step values that no newer one has replaced."""
        return _newest(entry for entry in self.entries.values() if entry.on_step and entry.is_fresh)

    def names(self) -> set[str]:
        """All names under which values appear."""
        names = set(self.entries)
        return names.union(*(entry.shown_names for entry in self.entries.values()))

    def logger_names(self) -> set[str]:
        """All names that go to the loggers."""
        logged = (entry.shown_names for entry in self.entries.values() if entry.logger)
        return set[str]().union(*logged)


def _newest(entries: Iterable[Entry]) -> dict[str, Any]:
    newest = {entry.step_name: entry.newest for entry in entries}
    return {name: value for name, value in newest.items() if value is not None}


def _is_metric(value: Any) -> bool:
    """True if it reduces by itself. torchmetrics may not be installed: its objects are known by
    what they can do.
    """
    return callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None))


def _as_number(name: str, value: Any) -> int | float:
    """A NumPy scalar and the like."""
    is_text = isinstance(value, str | bytes)
    if is_text or not hasattr(value, "__float__") or getattr(value, "size", 1) != 1:
        raise ModuleError(
            f"self.log({name!r}) got {type(value).__name__}; expected a number, a tensor with one "
            "element, or a torchmetrics Metric. For several values use self.log_dict."
        )
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, int) else float(value)


def _reduce_step(strategy: Strategy, value: Any, reduction: str) -> object:
    wide = widen(to_tensor(value, strategy.root_device), is_float=reduction == "mean")
    reduced = strategy.reduce(wide, reduce_op=reduction)
    # ranks of one shard have logged the same
    num_copies = strategy.world_size // strategy.data_parallel_size
    if reduction != "sum" or num_copies == 1:
        return reduced
    return reduced / num_copies if reduced.is_floating_point() else reduced // num_copies


class NullMetricCollector(MetricCollector):
    """Discards everything that is logged."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Do nothing."""
