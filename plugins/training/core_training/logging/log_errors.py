"""The errors of a `self.log` that can't be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.contract import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core_training.logging.metric_collector import MetricCollector
    from core_training.logging.metric_entry import Entry

_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "sync_dist", "rank_zero_only")


def describe_conflict(entry: Entry, options: tuple[Any, ...], by_step: bool, by_epoch: bool) -> str:
    """One name, logged in two ways."""
    changed = [
        f"{name}={before!r} and {name}={after!r}"
        for name, before, after in zip(_OPTIONS, entry.options, options, strict=True)
        if before != after
    ]
    if not changed:
        changed = [
            f"on_step={entry.on_step} and on_epoch={entry.on_epoch} in one hook, "
            f"on_step={by_step} and on_epoch={by_epoch} in another"
        ]
    return (
        f"self.log({entry.name!r}) was called with {', '.join(changed)} in one stage. "
        "Log it in one way, or under two names."
    )


def check_metric(entry: Entry, value: Any) -> None:
    """The same torchmetrics object in every call."""
    if entry.metric is value:
        return
    before, after = _name_of(entry.metric), _name_of(value)
    if before == after:
        after = f"another {after}"
    raise ModuleError(
        f"self.log({entry.name!r}) got {before} before, and {after} now. Log one kind of value "
        "under one name: the Metric object, or what it computes."
    )


def check_alone(entry: Entry, collectors: Iterable[MetricCollector], own: MetricCollector) -> None:
    """Refuse a torchmetrics object that has gathered batches of another stage or loader too.

    Raises:
        ModuleError: it was logged there.
    """
    for metrics in collectors:
        for other in metrics.entries.values():
            if other.metric is entry.metric and (
                metrics is not own or other.dataloader_idx != entry.dataloader_idx
            ):
                where = "another loader" if metrics is own else "another stage of this run"
                raise ModuleError(
                    f"self.log({entry.name!r}) got the {_name_of(entry.metric)} that was logged as "
                    f"{other.name!r} in {where}: it would compute one value of both. Make an "
                    "object for each, such as self.metrics = torch.nn.ModuleList([...])."
                )


def check_called(name: str, metric: Any) -> None:
    """Refuse to log single steps of a torchmetrics object that has no value of a step.

    Raises:
        ModuleError: it was updated, and not called.
    """
    if getattr(metric, "_update_count", 0) and getattr(metric, "_forward_cache", metric) is None:
        raise ModuleError(
            f"self.log({name!r}) got a {_name_of(metric)} that was updated and not called, so that "
            "it has no value of a single step, and nothing would be logged. Call it, metric(...), "
            "in place of metric.update(...); or log the epoch's value: on_step=False, "
            "on_epoch=True."
        )


def describe_alone(name: str, on: list[int], others: list[int]) -> str:
    """The warning for an epoch's value that some ranks log, and others don't."""
    which, rest = (f"rank{'s' * (len(each) > 1)} {str(each)[1:-1]}" for each in (on, others))
    return (
        f"self.log({name!r}) is called on {which}, and not on {rest}: the epoch's value is of "
        f"{which} alone. Log it on all ranks, or pass rank_zero_only=True where rank 0 is meant."
    )


def describe_size(name: str, batch: object, size: int | None) -> str:
    """A batch that doesn't say how many samples it has, or says several things."""
    what = f"how many samples a batch has ({type(batch).__name__}"
    if size is None:
        what += " without a tensor that has dimensions), so that each batch counts as 1"
    else:
        what += " of tensors that differ in their first dimension, or aren't stacked)"
        what += f", and takes the first tensor's, {size} here,"
    return (
        f"self.log({name!r}) can't tell {what} in the epoch's mean. "
        f"Say it: self.log({name!r}, ..., batch_size=number of samples)."
    )


def as_value(name: str, computed: Any) -> float:
    """The result of a torchmetrics object, as a number.

    Raises:
        ModuleError: it is several numbers.
    """
    if isinstance(computed, float | int):
        return computed
    what = type(computed).__name__
    if isinstance(computed, Tensor):
        if computed.numel() == 1:
            return computed.item()
        what = f"a tensor of shape {tuple(computed.shape)}"
    raise ModuleError(
        f"The metric that self.log({name!r}) got computes {what}; expected one number. Log its "
        "parts by themselves in an epoch-end hook: self.log_dict({...})."
    )


def _name_of(value: Any) -> str:
    if value is None or isinstance(value, Tensor | float | int):
        return "a number"
    return type(value).__name__
