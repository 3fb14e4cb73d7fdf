"""Plans: what each strategy would need for a program, found without the memory that it takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core_plan.contender import Contender, parse_contenders
from core_plan.stage import MOST_PROCESSES, Stage, available_bytes, runner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn


@dataclass(frozen=True)
class MemoryPlan:
    """The memory and messages of a rank that runs a program under one strategy.

    Attributes:
        strategy: as it was asked for, with options.
        devices: ranks a node.
        num_nodes: nodes.
        setup_bytes: the most before the first step: in the memory of the host, where modules are
            built there.
        memory: bytes by kind at the peak of the steps: parameters, gradients, optimizer,
            activations, buffers, transient.
        sent: bytes that a rank hands to collectives from one optimizer step to the next, by
            operation and axis.
        checkpoint_bytes: that a rank writes.
        source: "rehearsed" without memory; "run" for real, with as many ranks; "extrapolated" from
            runs of 1 and 2.
        assumed: values that the program asked for and nobody has, and what they were taken to be;
            or why it was run.
        own_strategy: the alias that the program itself names, if it was rehearsed and names one.
        failure: why there is no plan; None if there is one.
    """

    strategy: str
    devices: int
    num_nodes: int
    setup_bytes: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    checkpoint_bytes: int = 0
    source: str = "rehearsed"
    assumed: Sequence[str] = ()
    own_strategy: str | None = None
    failure: str | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that a rank holds at one moment of a step."""
        return sum(self.memory.values())


def plan(
    program: str | Callable[[], nn.Module],
    *,
    strategies: Sequence[str],
    devices: int,
    num_nodes: int = 1,
    arguments: Sequence[str] = (),
    is_loud: bool = False,
    **options: Any,
) -> list[MemoryPlan]:
    """Main process. Plan for a program under each strategy. It needs no device and no memory for
    the model.

    Each plan is made in a copy of this process, in which the program runs under the strategy's own
    code up to its second optimizer step, as rank 0 of a world that doesn't exist, with tensors that
    have no memory.

    Args:
        program: path of a script; `"module:Class"` of a `core.Module` with a `train_dataloader`; or
            a function that makes one.
        strategies: as on the command line, such as `"parallel:data=2,shard=4"`.
        devices: ranks a node.
        num_nodes: nodes.
        arguments: of the script.
        is_loud: let the program print.
        options: arguments of Trainer that replace the program's, such as `precision`.
    """
    run = runner(program, list(arguments))
    return [
        MemoryPlan(
            str(each),
            devices,
            num_nodes,
            **_rehearsed(Stage(run, each, devices, num_nodes, options, is_loud)),
        )
        for each in parse_contenders(strategies)
    ]


def _rehearsed(stage: Stage) -> dict[str, Any]:
    world_size = stage.devices * stage.num_nodes
    found = stage.rehearse()
    by_itself = found.pop("is_engine", False) or found.get("is_refusal")
    if "failure" in found and not by_itself and 1 < world_size <= MOST_PROCESSES:
        found = stage.rehearse(num_processes=world_size)
    if "failure" in found and not found.get("is_refusal") and (run_small := _small(stage)):
        why = found["failure"]
        found = {**run_small, "assumed": [why]}
        if "failure" in run_small:
            found = {
                "failure": f"{why} {run_small['failure']} Plan for a smaller model of the same "
                "kind."
            }
    found.pop("is_refusal", None)
    return found


def _small(stage: Stage) -> dict[str, Any] | None:
    """The findings of real runs of 1 and 2 ranks, and what follows from them for more; None if one
    of them fails.
    """
    alone = dataclasses.replace(stage, devices=1, num_nodes=1)
    needed = dataclasses.replace(alone, contender=Contender("single_device")).rehearse()
    needed_bytes, left_bytes = 4 * sum(needed.get("memory", {}).values()), available_bytes()
    if needed_bytes > left_bytes:
        size, free = f"{needed_bytes / 2**30:.0f} GiB", f"{left_bytes / 2**30:.0f} GiB"
        why = (
            f"It would have to run for real with 2 ranks, which takes some {size}; {free} are "
            "free here."
        )
        return {"failure": why}
    world_size = stage.devices * stage.num_nodes
    one = alone.rehearse(is_real=True)
    if world_size == 1 or ("failure" in one and world_size != 2):
        return None if "failure" in one else {**one, "source": "run"}
    two = dataclasses.replace(stage, devices=2, num_nodes=1).rehearse(num_processes=2, is_real=True)
    if "failure" in two or world_size == 2:
        return None if "failure" in two else {**two, "source": "run"}
    more: dict[str, Any] = {"source": "extrapolated"}
    more["memory"] = {
        key: _extrapolated(one["memory"][key], of_two, world_size)
        for key, of_two in two["memory"].items()
    }
    more["sent"] = {
        key: _sent_by_more(key, of_two, world_size) for key, of_two in two["sent"].items()
    }
    for name in ("setup_bytes", "checkpoint_bytes"):
        more[name] = _extrapolated(one[name], two[name], world_size)
    return more


def _extrapolated(one: int, two: int, world_size: int) -> int:
    """Bytes with so many ranks, of a part that each has and a part that they share, by those of 1
    and of 2 ranks.
    """
    shared = 2 * (one - two)
    return max(0, one - shared + shared // world_size)


def _sent_by_more(operation: str, of_two: int, world_size: int) -> int:
    """Bytes that a rank hands to a collective: its share of what is gathered, all of what is
    reduced.
    """
    return 2 * of_two // world_size if operation.startswith("allgather") else of_two
