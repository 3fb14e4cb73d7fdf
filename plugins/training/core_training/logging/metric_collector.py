"""The values that the user logs: collected on the device without a wait, reduced when they are
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import ModuleError
from core.data import is_ambiguous, size_of
from core_training.logging import log_errors
from core_training.logging.metric_entry import REDUCTIONS, ComputedMetric, Entry, join_totals
from core_training.logging.non_finite_losses import weight_in
from core_training.logging.scalar_widths import reduce_weighted, to_tensor, widen
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from torch import nn

    from core.contract import Strategy
    from core_training.logging.metric_entry import LogOptions

    _Reduction: TypeAlias = tuple[str, float, float]
    """The name of a reduction, its running total, and its weight."""


BEFORE_AND_AFTER = "outside of the training, validation or test that a Trainer runs"


@dataclass(slots=True)
class MetricCollector:
    """The values that one stage logs.

    Attributes:
        on_epoch_default: True if a value counts for the epoch (evaluation, hooks around epochs),
            False for its step.
        closed: where the run is while nothing can be logged; None while something can.
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
        computed: what torchmetrics objects gave before the hooks of the epoch's end, by name.
        known_alone: names that only some ranks log, of which a warning was given.
    """

    on_epoch_default: bool
    entries: dict[str, Entry] = field(default_factory=dict)
    closed: str | None = BEFORE_AND_AFTER
    sync_step: Callable[[object, str], object] | None = None
    batch: Any = None
    weight: float | Tensor | None = None
    held: list[tuple[Entry, object]] | None = None
    share: float | None = None
    dataloader_idx: int | None = None
    has_weighed: bool = False
    collectors: Sequence[MetricCollector] = ()
    computed: dict[str, ComputedMetric] = field(default_factory=dict)
    known_alone: set[str] = field(default_factory=set)

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
        self.closed, self.on_epoch_default = None, on_epoch_default
        self.weight, self.held = None, [] if holds else None
        if strategy is not None and strategy.session.has_peers:
            self.sync_step = partial(_reduce_step, strategy)

    def close(self) -> None:
        """Make logging an error from now on."""
        self.closed, self.sync_step = BEFORE_AND_AFTER, None

    def reset(self) -> None:
        """Another stage begins, perhaps with another module: names may be logged in another way."""
        self.entries.clear()
        self.computed.clear()
        self.has_weighed, self.share = False, None
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
        if self.closed is not None:
            raise ModuleError(log_errors.describe_closed(name, self.closed))
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
                raise ModuleError(log_errors.describe_shape(name, value))
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
            if self.weight is None and (options := entry.options):
                self.log(entry.name, value, options, add_dataloader_idx=False)
            elif self.weight is not None:
                self._add_weighted(entry, value, self.weight)
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
        reduction = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
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
        entry.default, entry.metric = self.on_epoch_default, value if _is_metric(value) else None
        entry.dataloader_idx, entry.in_batch = self.dataloader_idx, self.batch is not None
        if entry.metric is not None:
            if by_step and not by_epoch:
                log_errors.check_called(name, value)
            log_errors.check_alone(entry, self.collectors, self)
        entry.syncs_steps = by_step and sync_dist is True and not rank_zero_only
        entry.is_stepwise = not by_epoch and not entry.syncs_steps and entry.metric is None
        return entry

    def _resolve(self, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
        by_epoch = self.on_epoch_default if on_epoch is None else on_epoch
        return (not self.on_epoch_default) if on_step is None else on_step, by_epoch

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
            raise ModuleError(
                log_errors.describe_conflict(entry, options, by_step=by_step, by_epoch=by_epoch)
            )

    def step_values(self) -> dict[str, Any]:
        """The newest value of everything that is logged by step, as it is."""
        return {
            entry.step_name: _last(entry)
            for entry in self.entries.values()
            if entry.on_step and _has_last(entry)
        }

    def fresh_values(self) -> dict[str, Any]:
        """The step values that no newer one has replaced."""
        fresh = [
            entry
            for entry in self.entries.values()
            if entry.is_fresh and entry.on_step and _has_last(entry)
        ]
        return {entry.step_name: _last(entry) for entry in fresh}

    def mark_stale(self) -> None:
        """Mark all values as no longer fresh: newer ones may come."""
        for entry in self.entries.values():
            entry.is_fresh = False

    def names(self) -> set[str]:
        """All names under which values appear."""
        return {
            name
            for entry in self.entries.values()
            for name in (entry.name, entry.step_name, entry.epoch_name)
        }

    def bar_names(self) -> set[str]:
        """All names that the progress bar shows."""
        return {
            name
            for entry in self.entries.values()
            if entry.prog_bar
            for name in (entry.step_name, entry.epoch_name)
        }

    def logger_names(self) -> set[str]:
        """All names that go to the loggers."""
        return {
            name
            for entry in self.entries.values()
            if entry.logger
            for name in (entry.step_name, entry.epoch_name)
        }

    def reduce_epoch(
        self, strategy: Strategy, module: nn.Module | None = None, *, is_over: bool = True
    ) -> dict[str, float]:
        """All ranks. The epoch's values, over all shards of the data where asked; begins a new
        epoch.

        Values that are not logged with `sync_dist=False` are exact over all samples: sums and
        weights are added, ranks that saw fewer samples, or none, included.

        Args:
            strategy: whose ranks take part.
            module: that has the torchmetrics objects; a rank that saw no batch finds them there.
            is_over: False to look at an epoch that goes on, or whose last hooks are still to run.
                Torchmetrics objects are computed once for both, unless those hooks have updated
                one.
        """
        if self.held:  # a batch that was left out
            self.release(None)
        # What this rank has.
        reduced = [entry for entry in self.entries.values() if entry.on_epoch]
        local = {
            entry.epoch_name: _partial(entry)
            for entry in reduced
            if entry.metric is None and entry.count
        }
        metrics = {entry.epoch_name: entry.metric for entry in reduced if entry.metric is not None}
        synced: dict[str, _Reduction] = {}
        module_paths: dict[str, str] = {}
        has_changed = any(found.is_stale for found in self.computed.values())
        # What all shares have. A rank that saw no batch learns here which torchmetrics objects to
        # compute with the others.
        if strategy.session.has_peers:
            synced_entries = (
                entry
                for entry in reduced
                if entry.sync_dist is not False and not entry.rank_zero_only
            )
            shared = {entry.epoch_name for entry in synced_entries}
            part = {name: part for name, part in local.items() if name in shared}
            own = part, _module_paths(metrics, module), has_changed, self._logged_always(part)
            (synced, module_paths, has_changed), logged = _gather(strategy, *own)
            # ranks of one share have parts of a model
            if strategy.data_parallel_size == strategy.world_size:
                self._warn_of_alone(logged)
        if has_changed:
            self.computed.clear()
        # One number for each name; a mean's total is weighted.
        values = {}
        for name, (reduction, total, weight) in {**local, **synced}.items():
            values[name] = total / weight if reduction == "mean" else total
        # torchmetrics communicates when it computes: in the same order on all ranks.
        for name in dict.fromkeys((*module_paths, *metrics)):
            if name not in self.computed:
                metric: Any = (
                    metrics[name] if name in metrics else module.get_submodule(module_paths[name])  # type: ignore[union-attr]
                )
                self.computed[name] = ComputedMetric.of(name, metric, recompute=has_changed)
        values.update({name: found.value for name, found in self.computed.items()})
        if is_over:
            for found in self.computed.values():  # after all were computed: some are made of others
                found.metric.reset()
            self.begin_epoch()
        return values

    def _logged_always(self, part: dict[str, _Reduction]) -> set[str]:
        """The names that this rank has logged in each batch, or beside batches; none where it has
        had no batch.
        """
        entries = [
            each
            for each in self.entries.values()
            if each.epoch_name in part and each.dataloader_idx is None
        ]
        weights = {
            entry.epoch_name: part[entry.epoch_name][2] for entry in entries if entry.in_batch
        }
        most = max(weights.values(), default=0)
        return {
            entry.epoch_name
            for entry in entries
            if most and weights.get(entry.epoch_name, most) == most
        }

    def _warn_of_alone(self, logged: Sequence[tuple[set[str], set[str]]]) -> None:
        """Warn once of a name that some ranks always log, and others never. `logged`: what each
        logs, and always.
        """
        ranks = {rank: names for rank, (names, always) in enumerate(logged) if always}
        for name in set[str]().union(*(always for _, always in logged)) - self.known_alone:
            on = [rank for rank, names in ranks.items() if name in names]
            if len(on) < len(ranks):
                self.known_alone.add(name)
                warn_caller(log_errors.describe_alone(name, on, sorted(ranks.keys() - on)))

    def reset_metrics(self) -> None:
        """Forget what torchmetrics objects have gathered: the next stage may log them too."""
        for entry in self.entries.values():
            if entry.metric is not None:
                entry.metric.reset()

    def begin_epoch(self) -> None:
        """Forget what was reduced so far."""
        self.computed.clear()
        for entry in self.entries.values():
            entry.clear()


def _is_metric(value: Any) -> bool:
    """True if it reduces by itself. torchmetrics may not be installed: its objects are known by
    what they can do.
    """
    return callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None))


def _as_number(name: str, value: Any) -> int | float:
    """A NumPy scalar and the like."""
    if (
        isinstance(value, str | bytes)
        or not hasattr(value, "__float__")
        or getattr(value, "size", 1) != 1
    ):
        raise ModuleError(log_errors.describe_type(name, value))
    number = value.item() if hasattr(value, "item") else value
    return number if isinstance(number, int) else float(number)


def _reduce_step(strategy: Strategy, value: Any, reduction: str) -> object:
    wide = widen(to_tensor(value, strategy.root_device), is_float=reduction == "mean")
    reduced = strategy.reduce(wide, reduce_op=reduction)
    # ranks of one shard have logged the same
    num_copies = strategy.world_size // strategy.data_parallel_size
    if reduction != "sum" or num_copies == 1:
        return reduced
    return reduced / num_copies if reduced.is_floating_point() else reduced // num_copies


def _module_paths(metrics: dict[str, object], module: nn.Module | None) -> dict[str, str]:
    """The path of each metric in the module, by the name under which it is logged."""
    if not metrics or module is None:
        return {}
    names = {id(part): path for path, part in module.named_modules(remove_duplicate=False)}
    return {name: names[id(metric)] for name, metric in metrics.items() if id(metric) in names}


def _gather(
    strategy: Strategy,
    local: dict[str, _Reduction],
    module_paths: dict[str, str],
    has_changed: bool,
    always: set[str],
) -> tuple[tuple[dict[str, _Reduction], dict[str, str], bool], list[tuple[set[str], set[str]]]]:
    """All ranks. Merged reductions of all shards, the metrics of any rank, and True if any rank's
    have changed.

    Also, on rank 0, the names that each rank has logged, and `always`.
    """
    merged: dict[str, _Reduction] = {}
    found: dict[str, str] = {}
    seen: set[tuple[int, str]] = set()
    logged: list[tuple[set[str], set[str]]] = []
    own = (strategy.data_parallel_rank, local, module_paths, has_changed, always)
    for share, part, metrics, other_has_changed, others in strategy.gather_objects(own) or ():
        logged.append((set(part), others))
        # The path of the first rank that has one.
        found = {**metrics, **found}
        has_changed = has_changed or other_has_changed
        for name, (reduction, total, weight) in part.items():
            # ranks of one shard have logged the same: the first one counts
            if (share, name) in seen:
                continue
            seen.add((share, name))
            if name not in merged:
                merged[name] = (reduction, total, weight)
                continue
            _, so_far, so_far_weight = merged[name]
            merged[name] = (
                reduction,
                join_totals(reduction, so_far, total),
                so_far_weight + weight,
            )
    return strategy.broadcast((merged, found, has_changed)), logged


def _partial(entry: Entry) -> _Reduction:
    total, count = entry.total, entry.count
    number = count.item() if isinstance(count, Tensor) else count
    # `+` makes an int of a bool.
    return entry.reduce_fx, total.item() if isinstance(total, Tensor) else +total, number


def _has_last(entry: Entry) -> bool:
    return entry.last is not None or getattr(entry.metric, "_forward_cache", None) is not None


def _last(entry: Entry) -> object:
    if entry.last_dtype is not None:
        return torch.tensor(entry.last, dtype=entry.last_dtype)
    return entry.last if entry.metric is None else entry.metric._forward_cache


class NullMetricCollector(MetricCollector):
    """Discards everything that is logged."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Do nothing."""
