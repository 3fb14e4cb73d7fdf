"""What the user logs: collected on the device without a wait, reduced when somebody looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import Capability, ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy

_REDUCTIONS = ("mean", "sum", "min", "max")


@dataclass(slots=True, eq=False)
class Entry:
    """One logged name.

    Attributes:
        options: the arguments that must be the same in every call.
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
        if self.total is None:
            self.total, self.count = (value * weight if self.reduce_fx == "mean" else value), weight
            return
        self.count += weight
        if self.reduce_fx == "mean":
            self.total = self.total + value * weight
        elif self.reduce_fx == "sum":
            self.total = self.total + value
        else:
            self.total = _pick(self.reduce_fx, self.total, value)

    def clear(self) -> None:
        """Begin a new epoch. The newest value stays to be seen."""
        self.total, self.count = None, 0.0


@dataclass(slots=True)
class Metrics:
    """Everything that one stage logs.

    Attributes:
        on_epoch_default: whether a value counts for the epoch (evaluation, hooks around epochs) or for its step.
        batch: the running batch; its size weighs a mean.
        dataloader_idx: which of several loaders is running, None if there is one.
    """

    on_epoch_default: bool
    entries: dict[str, Entry] = field(default_factory=dict)
    batch: Any = None
    dataloader_idx: int | None = None

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
        if self.dataloader_idx is not None and add_dataloader_idx:
            name = f"{name}/dataloader_idx_{self.dataloader_idx}"
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only)
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = _make_entry(name, value, options, self.on_epoch_default)
        elif entry.options != options:
            raise ModuleError(_describe_conflict(entry, options))
        if entry.metric is not None:
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ModuleError(_describe_shape(name, value))
            value = value.detach()
        elif not isinstance(value, float | int):
            raise ModuleError(_describe_type(name, value))
        entry.last = value
        if entry.on_epoch:
            entry.add(value, float(batch_size if batch_size is not None else size_of(self.batch)))

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

    def reduce_epoch(self, strategy: Strategy) -> dict[str, float]:
        """All ranks. The epoch's values, over all ranks where asked; begins a new epoch.

        Values that are not logged with `sync_dist=False` are exact over all samples: sums and weights are added, ranks
        that saw fewer samples, or none, included.
        """
        local = {entry.name: _partial(entry) for entry in self.entries.values() if _is_plain_epoch(entry)}
        synced = _reduce_over_ranks(strategy, {name: part for name, part in local.items() if self._syncs(name)})
        values = {}
        for entry in self.entries.values():
            if entry.metric is not None and entry.on_epoch:
                values[entry.epoch_name] = float(entry.metric.compute())
                entry.metric.reset()
            elif entry.name in local:
                _, total, weight = synced.get(entry.name, local[entry.name])
                values[entry.epoch_name] = total / weight if entry.reduce_fx == "mean" else total
            entry.clear()
        return values

    def _syncs(self, name: str) -> bool:
        entry = self.entries[name]
        return entry.sync_dist is not False and not entry.rank_zero_only


def size_of(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of its first tensor, 1 if there is none."""
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if isinstance(part, Tensor | dict | list | tuple):
            return size_of(part)
    return 1


def _make_entry(name: str, value: Any, options: tuple[Any, ...], on_epoch_default: bool) -> Entry:
    prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only = options
    metric = value if callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None)) else None
    reduction = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
    reduction = {"amin": "min", "amax": "max", "avg": "mean"}.get(reduction, reduction)
    if reduction not in _REDUCTIONS:
        raise ModuleError(f"self.log({name!r}, reduce_fx={reduce_fx!r}): expected one of {', '.join(_REDUCTIONS)}.")
    by_epoch = on_epoch_default if on_epoch is None else on_epoch
    by_step = (not on_epoch_default) if on_step is None else on_step
    if not (by_epoch or by_step):
        raise ModuleError(f"self.log({name!r}): on_step and on_epoch are both False, so nothing would be logged.")
    return Entry(
        name, by_step, by_epoch, prog_bar, logger, reduction, sync_dist, rank_zero_only, options, metric=metric
    )


def _reduce_over_ranks(
    strategy: Strategy, local: dict[str, tuple[str, float, float]]
) -> dict[str, tuple[str, float, float]]:
    if Capability.COLLECTIVES not in strategy.capabilities or strategy.world_size == 1:
        return local
    gathered = strategy.gather_objects(local)
    merged: dict[str, tuple[str, float, float]] = {}
    for part in gathered or ():
        for name, (reduction, total, weight) in part.items():
            if name not in merged:
                merged[name] = (reduction, total, weight)
                continue
            _, so_far, so_far_weight = merged[name]
            joined = so_far + total if reduction in ("mean", "sum") else _pick(reduction, so_far, total)
            merged[name] = (reduction, joined, so_far_weight + weight)
    return dict(strategy.broadcast(merged))


def _is_plain_epoch(entry: Entry) -> bool:
    return entry.metric is None and entry.on_epoch and entry.total is not None


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


def _describe_conflict(entry: Entry, options: tuple[Any, ...]) -> str:
    names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "sync_dist", "rank_zero_only")
    changed = [
        f"{name}={before!r} and {name}={after!r}"
        for name, before, after in zip(names, entry.options, options, strict=True)
        if before != after
    ]
    return (
        f"self.log({entry.name!r}) was called with {', '.join(changed)} in one stage. "
        "Log it in one way, or under two names."
    )


def _describe_shape(name: str, value: Tensor) -> str:
    return (
        f"self.log({name!r}) got a tensor of shape {tuple(value.shape)}; expected one number. "
        "Reduce it first, for example with .mean()."
    )


def _describe_type(name: str, value: Any) -> str:
    return (
        f"self.log({name!r}) got {type(value).__name__}; expected a number, a tensor with one element, "
        "or a torchmetrics Metric. For several values use self.log_dict."
    )
