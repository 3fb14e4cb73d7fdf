"""What the user logs: collected on the device without a wait, reduced when somebody looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import Capability, ModuleError
from core.trainer import log_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from torch import nn

    from core.contract import Strategy

    _Reduction: TypeAlias = tuple[str, float, float]
    """Which reduction, its running total, and its weight."""

_REDUCTIONS = ("mean", "sum", "min", "max")
BEFORE_AND_AFTER = "outside of the training, validation or test that a Trainer runs"


@dataclass(slots=True, eq=False)
class Entry:
    """One logged name.

    Attributes:
        options: the arguments that must be the same in every call; empty if a checkpoint brought this entry back.
        default: `Metrics.on_epoch_default` when it was logged first.
        syncs_steps: reduce single steps over ranks too.
        last: the newest value, detached, on its device.
        total, count: running reduction of an epoch; for the mean, weighted by batch sizes.
        metric: a torchmetrics object that reduces by itself.
    """

    name: str
    on_step: bool
    on_epoch: bool
    prog_bar: bool
    logger: bool
    reduce_fx: str
    sync_dist: bool | None
    rank_zero_only: bool
    options: tuple[Any, ...]
    default: bool = False
    syncs_steps: bool = False
    last: Any = None
    total: Any = None
    count: float = 0.0
    metric: Any = None

    @property
    def step_name(self) -> str:
        """With a suffix if the name is reduced over an epoch too."""
        return f"{self.name}_step" if self.on_epoch else self.name

    @property
    def epoch_name(self) -> str:
        """With a suffix if single steps are logged too."""
        return f"{self.name}_epoch" if self.on_step else self.name

    def add(self, value: Any, weight: float) -> None:
        """Take a value of one batch into the epoch's reduction."""
        self.merge(value * weight if self.reduce_fx == "mean" else value, weight)

    def merge(self, total: Any, count: float) -> None:
        """Take another running reduction into this one."""
        if self.total is None:
            self.total, self.count = total, count
            return
        self.count += count
        adds = self.reduce_fx in ("mean", "sum")
        self.total = self.total + total if adds else _pick(self.reduce_fx, self.total, total)

    def clear(self) -> None:
        """Begin a new epoch. The newest value stays to be seen."""
        self.total, self.count = None, 0.0


@dataclass(slots=True)
class Metrics:
    """Everything that one stage logs.

    Attributes:
        on_epoch_default: whether a value counts for the epoch (evaluation, hooks around epochs) or for its step.
        closed: where the run is while nothing can be logged; None while something can.
        sync_step: reduces the value of one step over ranks, for `sync_dist=True`; None if there is nothing to reduce.
        batch: the running batch; its size weighs a mean.
        dataloader_idx: which of several loaders is running, None if there is one.
    """

    on_epoch_default: bool
    entries: dict[str, Entry] = field(default_factory=dict)
    closed: str | None = BEFORE_AND_AFTER
    sync_step: Callable[[Any, str], Any] | None = None
    batch: Any = None
    dataloader_idx: int | None = None

    def open(self, *, on_epoch_default: bool, strategy: Strategy | None = None) -> None:
        """From now on values are collected.

        Args:
            on_epoch_default: see the attribute.
            strategy: over whose ranks single steps are reduced where that is asked for: all ranks make the same steps.
        """
        self.closed, self.on_epoch_default = None, on_epoch_default
        if strategy is not None and Capability.COLLECTIVES in strategy.capabilities and strategy.world_size > 1:
            self.sync_step = partial(_reduce_step, strategy)

    def close(self) -> None:
        """From now on logging is an error."""
        self.closed, self.sync_step = BEFORE_AND_AFTER, None

    def reset(self) -> None:
        """Another stage begins, perhaps with another module: names may be logged in another way."""
        self.entries.clear()
        self.close()

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        logger: bool,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: str | Callable[..., Any],
        sync_dist: bool | None,
        batch_size: int | None,
        add_dataloader_idx: bool,
        rank_zero_only: bool,
    ) -> None:
        """Record a value; see `core.Module.log`."""
        if self.closed is not None:
            raise ModuleError(log_errors.describe_place(name, self.closed))
        if self.dataloader_idx is not None and add_dataloader_idx:
            name = f"{name}/dataloader_idx_{self.dataloader_idx}"
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only)
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = self._make_entry(name, value, options)
        elif entry.options != options or entry.default is not self.on_epoch_default:
            self._compare(entry, options)
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
        synced = entry.syncs_steps and self.sync_step is not None
        entry.last = self.sync_step(value, entry.reduce_fx) if synced else value  # type: ignore[misc]
        if entry.on_epoch:
            entry.add(value, float(batch_size if batch_size is not None else size_of(self.batch)))

    def _make_entry(self, name: str, value: Any, options: tuple[Any, ...]) -> Entry:
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only = options
        reduction = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
        reduction = {"amin": "min", "amax": "max", "avg": "mean"}.get(reduction, reduction)
        if reduction not in _REDUCTIONS:
            raise ModuleError(f"self.log({name!r}, reduce_fx={reduce_fx!r}): expected one of {', '.join(_REDUCTIONS)}.")
        by_step, by_epoch = self._resolve(on_step, on_epoch)
        if not (by_epoch or by_step):
            raise ModuleError(f"self.log({name!r}): on_step and on_epoch are both False, so nothing would be logged.")
        entry = Entry(name, by_step, by_epoch, prog_bar, logger, reduction, sync_dist, rank_zero_only, options)
        entry.default, entry.metric = self.on_epoch_default, value if _is_metric(value) else None
        entry.syncs_steps = by_step and sync_dist is True and not rank_zero_only
        return entry

    def _resolve(self, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
        by_epoch = self.on_epoch_default if on_epoch is None else on_epoch
        return (not self.on_epoch_default) if on_step is None else on_step, by_epoch

    def _compare(self, entry: Entry, options: tuple[Any, ...]) -> None:
        """Take a call that comes from another hook, or after a restart, unless it wants something else."""
        if not entry.options:
            entry.options, entry.default = options, self.on_epoch_default
            return
        by_step, by_epoch = self._resolve(*options[2:4])
        if entry.options != options or (by_step, by_epoch) != (entry.on_step, entry.on_epoch):
            raise ModuleError(log_errors.describe_conflict(entry, options, by_step=by_step, by_epoch=by_epoch))

    def step_values(self) -> dict[str, Any]:
        """The newest value of everything that is logged by step, as it is."""
        return {entry.step_name: _last(entry) for entry in self.entries.values() if entry.on_step and _has_last(entry)}

    def names(self, *, prog_bar: bool = False) -> set[str]:
        """All names under which values appear, or those that the progress bar shows."""
        chosen = [entry for entry in self.entries.values() if entry.prog_bar or not prog_bar]
        return {name for entry in chosen for name in (entry.name, entry.step_name, entry.epoch_name)}

    def logger_names(self) -> set[str]:
        """All names that go to the loggers."""
        chosen = [entry for entry in self.entries.values() if entry.logger]
        return {name for entry in chosen for name in (entry.step_name, entry.epoch_name)}

    def reduce_epoch(
        self, strategy: Strategy, module: nn.Module | None = None, *, is_over: bool = True
    ) -> dict[str, float]:
        """All ranks. The epoch's values, over all shares of the data where asked; begins a new epoch.

        Values that are not logged with `sync_dist=False` are exact over all samples: sums and weights are added, ranks
        that saw fewer samples, or none, included.

        Args:
            strategy: whose ranks take part.
            module: that has the torchmetrics objects; a rank that saw no batch finds them there.
            is_over: False to look at an epoch that goes on.
        """
        reduced = [entry for entry in self.entries.values() if entry.on_epoch]
        local = {entry.epoch_name: _partial(entry) for entry in reduced if entry.metric is None and entry.count}
        metrics = {entry.epoch_name: entry.metric for entry in reduced if entry.metric is not None}
        synced: dict[str, _Reduction] = {}
        places: dict[str, str] = {}
        if Capability.COLLECTIVES in strategy.capabilities and strategy.world_size > 1:
            synced_entries = (entry for entry in reduced if entry.sync_dist is not False and not entry.rank_zero_only)
            shared = {entry.epoch_name for entry in synced_entries}
            part = {name: part for name, part in local.items() if name in shared}
            synced, places = _gather(strategy, part, _places(metrics, module))
        values = {}
        for name, (reduction, total, weight) in {**local, **synced}.items():
            values[name] = total / weight if reduction == "mean" else total
        for name in dict.fromkeys((*places, *metrics)):
            metric: Any = metrics[name] if name in metrics else module.get_submodule(places[name])  # type: ignore[union-attr]
            values[name] = log_errors.as_value(name, metric.compute())
            if is_over:
                metric.reset()
        if is_over:
            self.begin_epoch()
        return values

    def begin_epoch(self) -> None:
        """Forget what was reduced so far."""
        for entry in self.entries.values():
            entry.clear()


def size_of(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of its first tensor, 1 if there is none."""
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if isinstance(part, Tensor | dict | list | tuple):
            return size_of(part)
    return 1


def _is_metric(value: Any) -> bool:
    """Whether it reduces by itself. torchmetrics objects are known by what they can do: it may not be installed."""
    return callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None))


def _as_number(name: str, value: Any) -> float:
    """A NumPy scalar and the like."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__") or getattr(value, "size", 1) != 1:
        raise ModuleError(log_errors.describe_type(name, value))
    return float(value.item() if hasattr(value, "item") else value)


def _reduce_step(strategy: Strategy, value: Any, reduction: str) -> Any:
    reduced = strategy.reduce(torch.as_tensor(value, device=strategy.root_device).float(), reduce_op=reduction)
    num_copies = strategy.world_size // strategy.data_parallel_size  # ranks of one share have logged the same
    return reduced / num_copies if reduction == "sum" and num_copies > 1 else reduced


def _places(metrics: dict[str, Any], module: nn.Module | None) -> dict[str, str]:
    """Where in the module each metric is, by the name under which it is logged."""
    if not metrics or module is None:
        return {}
    names = {id(part): place for place, part in module.named_modules(remove_duplicate=False)}
    return {name: names[id(metric)] for name, metric in metrics.items() if id(metric) in names}


def _gather(
    strategy: Strategy, local: dict[str, _Reduction], places: dict[str, str]
) -> tuple[dict[str, _Reduction], dict[str, str]]:
    """All ranks. Reductions of all shares of the data merged, and the metrics that anyone has, in one order."""
    merged: dict[str, _Reduction] = {}
    found: dict[str, str] = {}
    seen: set[tuple[int, str]] = set()
    for share, part, metrics in strategy.gather_objects((strategy.data_parallel_rank, local, places)) or ():
        found = {**metrics, **found}
        for name, (reduction, total, weight) in part.items():
            if (share, name) in seen:  # ranks of one share have logged the same: the first one counts
                continue
            seen.add((share, name))
            if name not in merged:
                merged[name] = (reduction, total, weight)
                continue
            _, so_far, so_far_weight = merged[name]
            joined = so_far + total if reduction in ("mean", "sum") else _pick(reduction, so_far, total)
            merged[name] = (reduction, joined, so_far_weight + weight)
    result: tuple[dict[str, _Reduction], dict[str, str]] = strategy.broadcast((merged, found))
    return result


def _partial(entry: Entry) -> tuple[str, float, float]:
    return entry.reduce_fx, float(entry.total), entry.count


def _has_last(entry: Entry) -> bool:
    return entry.last is not None or getattr(entry.metric, "_forward_cache", None) is not None


def _last(entry: Entry) -> Any:
    return entry.last if entry.metric is None else entry.metric._forward_cache


def _pick(reduction: str, first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        return torch.minimum(first, second) if reduction == "min" else torch.maximum(first, second)
    return min(first, second) if reduction == "min" else max(first, second)
