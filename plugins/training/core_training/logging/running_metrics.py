"""The values that an unfinished epoch has logged on one rank, in plain types, so that a resumed
epoch ends the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.data import map_leaves
from core_training.logging.metric_entry import Entry
from core_training.logging.scalar_widths import narrow_for, to_tensor
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core_training.logging.metric_values import MetricValues

_FLAGS = (
    "on_step", "on_epoch", "prog_bar", "logger", "reduce_fx", "sync_dist", "rank_zero_only",
    "default", "syncs_steps",
)  # fmt: skip


def collect(logged: MetricValues, module: nn.Module) -> dict[str, Any]:
    """All ranks. Running reductions, the newest values of everything, and the states of
    torchmetrics objects.
    """
    states: dict[str, object] = {}
    paths: dict[int, str] = {}
    for path, metric in _torchmetrics(module):
        paths[id(metric)] = path
        states[path] = {
            "state": _moved(metric.metric_state, torch.device("cpu")),
            "update_count": metric._update_count,
        }
    reductions, logged_objects = {}, {}
    for name, entry in logged.train.entries.items():
        flags = {flag: getattr(entry, flag) for flag in _FLAGS}
        if id(entry.metric) in paths:
            logged_objects[name] = {"place": paths[id(entry.metric)], **flags}
        elif entry.metric is None and entry.total is not None:
            reductions[name] = {
                "total": entry.total.cpu(),
                "is_on_device": not entry.total.is_cpu,
                "count": float(entry.count),
                **flags,
            }
    return {
        "reductions": reductions,
        "values": logged.newest(),
        "torchmetrics": states,
        "logged_objects": logged_objects,
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

    With fewer shards than before, one takes over the reductions of several; with more, some begin
    with nothing. Sums and weights are added over shards in the end, so that the epoch's value is
    the same. Torchmetrics objects can't be handed on in this way, and begin anew.

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
    entries, objects = logged.train.entries, dict(_torchmetrics(module))
    # Each shard that was saved goes to one of those that there are now.
    for part in saved[share::num_shards]:
        for name, state in part["reductions"].items():
            if name not in entries:
                entries[name] = _make_entry(name, state)
            total = to_tensor(state["total"])
            if state["is_on_device"]:
                total = narrow_for(device, total)
            entries[name].merge(total, state["count"])
    for name, state in own["logged_objects"].items():
        if state["place"] in objects:
            entries[name] = _make_entry(name, state)
            entries[name].metric = objects[state["place"]]
    if len(saved) == num_shards:
        for path in objects.keys() & own["torchmetrics"].keys():
            metric, kept = objects[path], own["torchmetrics"][path]
            for name, value in kept["state"].items():
                setattr(metric, name, _moved(value, metric.device))
            metric._update_count, metric._computed = kept["update_count"], None
    elif any(state["update_count"] for part in saved for state in part["torchmetrics"].values()):
        warn_caller(
            f"The checkpoint was saved by {len(saved)} ranks within an epoch, and goes on with "
            f"{num_shards}: torchmetrics objects begin anew, and will tell of this epoch what "
            "comes from here on.",
        )


def _make_entry(name: str, state: dict[str, Any]) -> Entry:
    """Without the options of the user's call, which is compared with later ones: the next call sets
    them.
    """
    flags = {flag: state[flag] for flag in _FLAGS}
    return Entry(name, **flags, options=())


def _torchmetrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The module's own torchmetrics objects by name, known by their attributes: the library may not
    be installed.
    """
    return (
        (name, child)
        for name, child in module.named_modules()
        if "_update_count" in vars(child) and hasattr(type(child), "metric_state")
    )


def _moved(state: Any, device: torch.device) -> object:
    return map_leaves(
        lambda leaf: leaf.detach().to(device) if isinstance(leaf, Tensor) else leaf, state
    )
