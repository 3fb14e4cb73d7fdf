"""The values of an epoch: what its steps have logged, reduced over batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from core_training.logging.log_errors import as_value, describe_alone
from core_training.logging.metric_entry import join_totals
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from core.contract import Strategy
    from core_training.logging.metric_entry import Entry


@dataclass(frozen=True, slots=True)
class _Total:
    """A running reduction of one name, as numbers, which ranks can exchange.

    Attributes:
        reduction: its name.
        total: of a mean, weighted.
        weight: of all values in it.
    """

    reduction: str
    total: float
    weight: float

    @classmethod
    def of(cls, entry: Entry) -> _Total:
        return cls(entry.reduce_fx, entry.total.item(), float(entry.count))

    def joined(self, other: _Total) -> _Total:
        total = join_totals(self.reduction, self.total, other.total)
        return replace(self, total=total, weight=self.weight + other.weight)

    @property
    def value(self) -> float:
        if self.reduction != "mean":
            return self.total
        return self.total / self.weight


class EpochReduction:
    """Reduces what one stage has logged. Before the hooks of an epoch's end it is looked at, and
    after them it is final: torchmetrics objects are computed once for both, unless those hooks have
    updated one.
    """

    def __init__(self) -> None:
        self._known_alone: set[str] = set()
        self.clear()

    def clear(self) -> None:
        """Forget what was computed."""
        self._objects: dict[str, Any] = {}
        self._computed: dict[str, float] = {}
        self._num_updates: list[int] = []

    def reduce(
        self, entries: Iterable[Entry], strategy: Strategy, module: nn.Module
    ) -> dict[str, float]:
        """All ranks. The epoch's values, over all shards of the data where asked.

        Values that are not logged with `sync_dist=False` are exact over all samples: sums and
        weights are added, ranks that saw fewer samples, or none, included.

        Args:
            entries: of this rank.
            strategy: whose ranks take part.
            module: that has the torchmetrics objects; a rank that saw no batch finds them there.
        """
        totals: dict[str, _Total] = {}
        shared: dict[str, _Total] = {}
        objects: dict[str, Any] = {}
        for entry in entries:
            if not entry.on_epoch:
                continue
            name = entry.epoch_name
            if entry.metric is not None:
                objects[name] = entry.metric
            elif entry.count:
                totals[name] = _Total.of(entry)
                if entry.sync_dist is not False and not entry.rank_zero_only:
                    shared[name] = totals[name]
        # One that a hook resets has its value from before.
        counts = zip(_count_updates(self._objects), self._num_updates, strict=True)
        has_changed = any(now > before for now, before in counts)
        if strategy.session.has_peers:
            paths = _paths_of(objects, module)
            always = _logged_always(entries, shared)
            shared, paths, has_changed = self._gather(strategy, shared, paths, has_changed, always)
            totals.update(shared)
            # A rank that saw no batch learns here which objects to compute with the others.
            found = {name: module.get_submodule(path) for name, path in paths.items()}
            objects = {**found, **objects}
        values = {name: total.value for name, total in totals.items()}
        values.update(self._compute(objects, has_changed))
        return values

    def _gather(
        self,
        strategy: Strategy,
        totals: dict[str, _Total],
        paths: dict[str, str],
        has_changed: bool,
        always: set[str],
    ) -> Any:
        """All ranks. Totals of all shards, the objects of any rank, and True if any rank's have
        changed.
        """
        merged: dict[str, _Total] = {}
        seen: set[tuple[int, str]] = set()
        logged: dict[int, Any] = {}
        own = (strategy.data_parallel_rank, totals, paths, has_changed, always)
        gathered = strategy.gather_objects(own) or ()
        for rank, (shard, part, others, other_has_changed, own_always) in enumerate(gathered):
            if own_always:  # it had a batch
                logged[rank] = part
                always = always | own_always
            # The path of the first rank that has one.
            paths = {**others, **paths}
            has_changed = has_changed or other_has_changed
            for name, total in part.items():
                # ranks of one shard have logged the same: the first one counts
                if (shard, name) not in seen:
                    seen.add((shard, name))
                    if name in merged:
                        total = merged[name].joined(total)
                    merged[name] = total
        answer = strategy.broadcast((merged, paths, has_changed))
        # ranks of one shard have parts of a model
        if strategy.data_parallel_size == strategy.world_size:
            self._warn_of_alone(always, logged)
        return answer

    def _warn_of_alone(self, always: set[str], logged: dict[int, Any]) -> None:
        """Rank 0. Warn once of a name that some ranks always log, and others never.

        Args:
            always: names that any rank has logged in each batch.
            logged: what each rank has logged, of those that had a batch; empty on other ranks.
        """
        for name in always - self._known_alone:
            on = [rank for rank, names in logged.items() if name in names]
            off = [rank for rank in logged if rank not in on]
            if off:
                self._known_alone.add(name)
                warn_caller(describe_alone(name, on, off))

    def _compute(self, objects: dict[str, Any], has_changed: bool) -> dict[str, float]:
        """All ranks, with objects in one order: torchmetrics communicates when it computes."""
        if has_changed:
            self._computed.clear()
            # A rank whose own objects are as before takes part in computing those of the others.
            for part in chain.from_iterable(map(_parts_of, objects.values())):
                part._computed = None
        for name, metric in objects.items():
            if name not in self._computed:
                self._computed[name] = as_value(name, metric.compute())
        self._objects, self._num_updates = objects, _count_updates(objects)
        return self._computed

    def end_epoch(self) -> None:
        """Begin anew, after all were computed: some objects are made of others."""
        for metric in self._objects.values():
            metric.reset()
        self.clear()


def _logged_always(entries: Iterable[Entry], shared: dict[str, _Total]) -> set[str]:
    """The names that this rank has logged in each batch, or beside batches; none where it has had
    no batch.
    """
    names = [
        entry for entry in entries if entry.epoch_name in shared and entry.dataloader_idx is None
    ]
    most = max((shared[each.epoch_name].weight for each in names if each.in_batch), default=0)
    return {
        each.epoch_name
        for each in names
        if most and (not each.in_batch or shared[each.epoch_name].weight == most)
    }


def _paths_of(objects: dict[str, Any], module: nn.Module) -> dict[str, str]:
    """The path of each torchmetrics object in the module, by the name under which it is logged."""
    if not objects:
        return {}
    paths = {id(part): path for path, part in module.named_modules(remove_duplicate=False)}
    return {name: paths[id(metric)] for name, metric in objects.items() if id(metric) in paths}


def _count_updates(objects: dict[str, Any]) -> list[int]:
    return [sum(part._update_count for part in _parts_of(metric)) for metric in objects.values()]


def _parts_of(metric: Any) -> list[Any]:
    """A torchmetrics object, and those that it is made of; none of another library."""
    if not hasattr(metric, "modules"):
        return []
    return [part for part in metric.modules() if hasattr(part, "_update_count")]
