"""Plans: what each strategy would need for a program, found without the memory that it takes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import resource
import sys
import tempfile
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from core import ConfigurationError
from core_plan.child import in_children
from core_plan.contender import Contender, parse_contenders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn


_TIMEOUT_S = 120.0
_MOST_PROCESSES = 8
"""A strategy whose ranks do different things, such as a pipeline's, is rehearsed by all of them: by
at most so many.
"""


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
    _import_once()
    run = _runner(program, list(arguments))
    given = {name: value for name, value in options.items() if value is not None}
    return [
        MemoryPlan(
            str(each),
            devices,
            num_nodes,
            **_rehearsed(_Stage(run, each, devices, num_nodes, given, is_loud)),
        )
        for each in parse_contenders(strategies)
    ]


def _import_once() -> None:
    """Import here what each rehearsal needs, in a fork of this process."""
    import torch._dynamo  # noqa: F401  # by every optimizer

    import core_plan.rehearsal.rehearse  # noqa: F401


@dataclass(frozen=True)
class _Stage:
    """Where a program is rehearsed under one strategy.

    Attributes:
        run: the program.
        contender: the strategy.
        devices, num_nodes: the ranks.
        options: arguments of Trainer or Fabric.
        is_loud: let it print.
    """

    run: Callable[[], None]
    contender: Contender
    devices: int
    num_nodes: int
    options: Mapping[str, Any]
    is_loud: bool

    def rehearse(self, *, num_processes: int = 1, is_real: bool = False) -> dict[str, Any]:
        """The findings of the rank that needs most, or the first failure.

        Args:
            num_processes: 1 pretends all other ranks; else as many as there are ranks.
            is_real: with real tensors.
        """

        def child(rank: int, meeting: str | None, report: Callable[[Any], None]) -> None:
            from core_plan.rehearsal.rehearse import Rehearsed

            if is_real:  # a model whose size nobody knows ends by its own error
                most = _available_bytes() // num_processes
                resource.setrlimit(
                    resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1])
                )
            place = (self.devices, self.num_nodes, self.options, report, rank, meeting)
            Rehearsed(self.contender, *place, is_real=is_real)
            self.run()

        with tempfile.TemporaryDirectory() as folder:
            meeting = f"{folder}/meeting" if num_processes > 1 else None
            ranks = [functools.partial(child, rank, meeting) for rank in range(num_processes)]
            every = in_children(ranks, timeout_s=_TIMEOUT_S, is_loud=self.is_loud)
        # a rank's own, before lost connections to it
        if failed := [one for one in every if "failure" in one]:
            return max(
                failed, key=lambda one: (bool(one.get("is_refusal")), "gloo" not in one["failure"])
            )
        return max(every, key=lambda one: sum(one["memory"].values()))


def _rehearsed(stage: _Stage) -> dict[str, Any]:
    world_size = stage.devices * stage.num_nodes
    found = stage.rehearse()
    by_itself = found.pop("is_engine", False) or found.get("is_refusal")
    if "failure" in found and not by_itself and 1 < world_size <= _MOST_PROCESSES:
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


def _small(stage: _Stage) -> dict[str, Any] | None:
    """The findings of real runs of 1 and 2 ranks, and what follows from them for more; None if one
    of them fails.
    """
    alone = dataclasses.replace(stage, devices=1, num_nodes=1)
    needed = dataclasses.replace(alone, contender=Contender("single_device")).rehearse()
    needed_bytes, available_bytes = 4 * sum(needed.get("memory", {}).values()), _available_bytes()
    if needed_bytes > available_bytes:
        size, free = f"{needed_bytes / 2**30:.0f} GiB", f"{available_bytes / 2**30:.0f} GiB"
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


def _available_bytes() -> int:
    # macOS doesn't say how many are free.
    pages = os.sysconf(
        "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    )
    return pages * os.sysconf("SC_PAGE_SIZE")


def _runner(program: str | Callable[[], nn.Module], arguments: list[str]) -> Callable[[], None]:
    """A function that runs the program to its end."""
    if callable(program):
        return functools.partial(_fit, program)
    if os.path.isfile(program):
        return functools.partial(_run_script, os.path.abspath(program), arguments)
    module, colon, name = program.partition(":")
    if program.endswith(".py"):
        raise ConfigurationError(f"There is no file {program!r} in {os.getcwd()}.")
    if not (colon and module and name):
        raise ConfigurationError(f"{program!r}: expected a script's path, or module:Class.")
    return functools.partial(_fit, lambda: _find(module, name)())


def _find(module: str, name: str) -> Callable[[], nn.Module]:
    sys.path.insert(0, os.getcwd())
    found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    return cast("Callable[[], nn.Module]", found)


def _fit(make: Callable[[], nn.Module]) -> None:
    from core import Trainer

    Trainer().fit(make())


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(main))  # the user's own program
