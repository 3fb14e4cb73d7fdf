"""Whether a plan fits a device, and the smallest change that makes it fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.registry import STRATEGY_REGISTRY
from core_plan.contender import Contender
from core_plan.rehearsal.cut_batches import CutBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core_plan.planner import MemoryPlan

_STATE = frozenset({"parameters", "gradients", "optimizer"})
_PRECISIONS = ("bf16-mixed", "bf16-true")
_DEVICES_OF_A_NODE = 8


@dataclass(frozen=True)
class Change:
    """One thing that is done differently.

    Attributes:
        what: as a user writes it.
        contender: the strategy.
        devices, num_nodes: the ranks.
        options: further arguments of Trainer.
    """

    what: str
    contender: Contender
    devices: int
    num_nodes: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Assessment:
    """Whether a plan fits.

    Attributes:
        plan: the plan.
        limit_bytes: the memory of a device; None if it wasn't said.
        change: the smallest change that makes it fit; None if it fits as it is, or if no change
            does.
        changed: the plan with that change.
        num_tried: changes that were planned for.
    """

    plan: MemoryPlan
    limit_bytes: int | None = None
    change: Change | None = None
    changed: MemoryPlan | None = None
    num_tried: int = 0

    @property
    def fits(self) -> bool | None:
        """None without a limit, and without a plan."""
        return None if self.spare_bytes is None else self.spare_bytes >= 0

    @property
    def spare_bytes(self) -> int | None:
        """The bytes that the device has beyond the peak; negative are those that it lacks."""
        known = self.limit_bytes is not None and self.plan.failure is None
        return self.limit_bytes - device_bytes(self.plan) if known else None  # type: ignore[operator]  # known


def on_device(plan: MemoryPlan) -> dict[str, int]:
    """Bytes at the peak by kind that are in the memory of the device."""
    away = _offloaded_kinds(plan.strategy)
    return {kind: size for kind, size in plan.memory.items() if kind not in away}


def offloaded(plan: MemoryPlan) -> dict[str, int]:
    """Bytes at the peak by kind that are in the memory of the CPU."""
    away = _offloaded_kinds(plan.strategy)
    return {kind: size for kind, size in plan.memory.items() if kind in away and size}


def device_bytes(plan: MemoryPlan) -> int:
    """The most that a device holds at one moment."""
    return sum(on_device(plan).values())


def judge(
    plan: MemoryPlan,
    limit_bytes: int | None,
    options: Mapping[str, Any],
    replan: Callable[[Change], MemoryPlan],
) -> Assessment:
    """Compare a plan with the memory of a device; where that lacks some, plan with one change after
    the other.

    The first that fits is the smallest.

    Args:
        plan: for a strategy as it was asked for.
        limit_bytes: the memory of a device.
        options: with which the plan was made.
        replan: makes the plan with a change.
    """
    assessment = Assessment(plan, limit_bytes)
    if assessment.fits is not False:
        return assessment
    assert limit_bytes is not None
    num_tried = 0
    for change in _changes(plan, options):
        changed = replan(change)
        num_tried += 1
        if changed.failure is None and device_bytes(changed) <= limit_bytes:
            return Assessment(plan, limit_bytes, change, changed, num_tried)
    return Assessment(plan, limit_bytes, num_tried=num_tried)


def _changes(plan: MemoryPlan, options: Mapping[str, Any]) -> Iterator[Change]:
    """From what costs least: time, then machines, then numbers, then what waits for the CPU's
    memory.
    """
    contender, place = Contender.parse(plan.strategy), (plan.devices, plan.num_nodes)
    if "activation_checkpointing" not in options:
        more = {**options, "activation_checkpointing": "units"}
        yield Change('activation_checkpointing="units"', contender, *place, more)
    halved = {"strategy": CutBatches(contender, 2), "accumulate_grad_batches": _Twice()}
    yield Change(
        "half the batch, accumulate_grad_batches doubled", contender, *place, {**options, **halved}
    )
    yield _more_shards(contender, *place, options)
    for precision in _PRECISIONS:
        if options.get("precision") not in _PRECISIONS:
            more = {**options, "precision": precision}
            yield Change(f'precision="{precision}"', contender, *place, more)
    for alias in _offloading(contender.alias):
        yield Change(f'strategy="{alias}"', Contender(alias, contender.options), *place, options)


def _more_shards(
    contender: Contender, devices: int, num_nodes: int, options: Mapping[str, Any]
) -> Change:
    shard = contender.options.get("shard")
    if isinstance(shard, int):
        contender = Contender(contender.alias, {**contender.options, "shard": 2 * shard})
    if 2 * devices <= _DEVICES_OF_A_NODE:
        return Change(f"devices={2 * devices}", contender, 2 * devices, num_nodes, options)
    return Change(f"num_nodes={2 * num_nodes}", contender, devices, 2 * num_nodes, options)


@dataclass(frozen=True)
class _Twice:
    """The double of the program's own number."""

    def __call__(self, given: Any) -> Any:
        return 2 * given if isinstance(given, int) else given


def _offloading(alias: str) -> list[str]:
    """The presets of a strategy that keep its state in the memory of the CPU."""
    return [
        name
        for name in STRATEGY_REGISTRY.names()
        if name.startswith(f"{alias}_") and name.endswith("offload")
    ]


def _offloaded_kinds(strategy: str) -> frozenset[str]:
    """The kinds that a strategy keeps in the memory of the CPU. To a rehearsal, which is on the
    CPU, all is one.

    ZeRO's stages 1 and 2 keep parameters on the device.
    """
    contender = Contender.parse(strategy)
    options = contender.options
    if contender.alias.endswith(("_offload", "_offload_nvme")):
        keeps = contender.alias.startswith(("deepspeed_stage_1", "deepspeed_stage_2"))
        return _STATE - {"parameters"} if keeps else _STATE
    if options.get("cpu_offload"):
        return _STATE
    found = {"gradients", "optimizer"} if options.get("offload_optimizer") else set()
    return frozenset(found | ({"parameters"} if options.get("offload_parameters") else set()))
