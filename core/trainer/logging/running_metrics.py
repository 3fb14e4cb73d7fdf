"""The values that an unfinished epoch has logged on one rank, in plain types, so that a resumed epoch ends the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.data import map_leaves
from core.trainer.logging.metric_collector import MetricCollector
from core.trainer.logging.metric_entry import Entry
from core.trainer.logging.scalar_widths import narrow_for
from core.trainer.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.trainer.logging.metric_values import MetricValues

_FLAGS = (
    "on_step", "on_epoch", "prog_bar", "logger", "reduce_fx", "sync_dist", "rank_zero_only", "default", "syncs_steps",
)  # fmt: skip


def collect(logged: MetricValues, module: nn.Module) -> dict[str, Any]:
    """All ranks. Running reductions, the newest values of everything, and the states of torchmetrics objects."""
    return {
        "reductions": {entry.name: _describe(entry) for entry in _running(logged.train)},
        "values": logged.newest(),
        "torchmetrics": {path: _metric_state(metric) for path, metric in _torchmetrics(module)},
        "logged_objects": _describe_objects(logged, module),
    }


def restore(
    logged: MetricValues,
    module: nn.Module,
    device: torch.device,
    saved: Sequence[dict[str, Any]],
    *,
    share: int,
    num_shards: int,
) -> None:
    """All ranks. Go on from what each shard of the data had collected in the saved run.

    With fewer shards than before, one takes over the reductions of several; with more, some begin with nothing. Sums
    and weights are added over shards in the end, so that the epoch's value is the same. Torchmetrics objects can't be
    handed on in this way, and begin anew.

    Args:
        logged: gets the values.
        module: with the torchmetrics objects.
        device: of this rank.
        saved: of each shard of the saved run.
        share: that this rank has now.
        num_shards: that there are now.
    """
    # With more shards than were saved, the rest see what the last one saw.
    own = saved[min(share, len(saved) - 1)]
    logged.take(own["values"])
    # Each shard that was saved goes to one of those that there are now.
    for part in saved[share::num_shards]:
        for name, state in part["reductions"].items():
            _add(logged.train, name, state, device)
    objects = dict(_torchmetrics(module))
    for name, state in own["logged_objects"].items():
        if (metric := objects.get(state["place"])) is not None:
            logged.train.entries[name] = entry = _make_entry(name, state)
            entry.metric = metric
    if len(saved) == num_shards:
        for path in objects.keys() & own["torchmetrics"].keys():
            _restore_metric(objects[path], own["torchmetrics"][path])
    elif any(state["update_count"] for part in saved for state in part["torchmetrics"].values()):
        warn_caller(
            f"The checkpoint was saved by {len(saved)} ranks within an epoch, and goes on with {num_shards}: "
            "torchmetrics objects begin anew, and will tell of this epoch what comes from here on.",
        )


def _running(metrics: MetricCollector) -> Iterator[Entry]:
    return (entry for entry in metrics.entries.values() if entry.metric is None and entry.total is not None)


def _describe(entry: Entry) -> dict[str, object]:
    total = entry.total
    on_host = total.cpu() if isinstance(total, Tensor) else total
    is_moved = on_host is not total
    return {"total": on_host, "is_on_device": is_moved, "count": float(entry.count), **_flags(entry)}


def _flags(entry: Entry) -> dict[str, object]:
    return {flag: getattr(entry, flag) for flag in _FLAGS}


def _describe_objects(logged: MetricValues, module: nn.Module) -> dict[str, dict[str, object]]:
    """The logging options of torchmetrics objects, by name, and their paths in the module."""
    paths = {id(metric): path for path, metric in _torchmetrics(module)}
    return {
        entry.name: {"place": paths[id(entry.metric)], **_flags(entry)}
        for entry in logged.train.entries.values()
        if id(entry.metric) in paths
    }


def _make_entry(name: str, state: dict[str, Any]) -> Entry:
    """Without the options of the user's call, which is compared with later ones: the next call sets them."""
    flags = {flag: state[flag] for flag in _FLAGS}
    return Entry(name, **flags, options=())


def _add(metrics: MetricCollector, name: str, state: dict[str, Any], device: torch.device) -> None:
    total = narrow_for(device, state["total"]) if state["is_on_device"] else state["total"]
    entry = metrics.entries.get(name)
    if entry is None:
        entry = metrics.entries[name] = _make_entry(name, state)
    entry.merge(total, state["count"])


def _torchmetrics(module: nn.Module) -> Iterator[tuple[str, object]]:
    """The module's own torchmetrics objects by name, known by their attributes: the library may not be installed."""
    return (
        (name, child)
        for name, child in module.named_modules()
        if "_update_count" in vars(child) and hasattr(type(child), "metric_state")
    )


def _metric_state(metric: Any) -> dict[str, object]:
    state = _moved(metric.metric_state, torch.device("cpu"))
    return {"state": state, "update_count": metric._update_count}


def _restore_metric(metric: Any, saved: dict[str, Any]) -> None:
    for name, value in saved["state"].items():
        setattr(metric, name, _moved(value, metric.device))
    metric._update_count, metric._computed = saved["update_count"], None


def _moved(state: Any, device: torch.device) -> object:
    return map_leaves(lambda leaf: leaf.detach().to(device) if isinstance(leaf, Tensor) else leaf, state)
