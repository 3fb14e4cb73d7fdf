"""Plans: what each strategy would need for a program, found without the memory that it takes."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core_plan.child import in_children
from core_plan.contender import Contender, parse_contenders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn


_TIMEOUT_S = 300.0
_MOST_PROCESSES = 8
"""A strategy whose ranks do different things, such as a pipeline's, is rehearsed by all of them: by at most so many."""


@dataclass(frozen=True)
class Plan:
    """What a rank needs for a program under one strategy.

    Attributes:
        strategy: as it was asked for, with options.
        devices: ranks a node.
        num_nodes: nodes.
        memory: bytes at the peak by kind: parameters, gradients, optimizer, activations, buffers, transient.
        sent: bytes that a rank hands to collectives from one optimizer step to the next, by operation and axis.
        checkpoint_bytes: that a rank writes.
        assumed: values that the program asked for and nobody has, and what they were taken to be.
        failure: why there is no plan; None if there is one.
    """

    strategy: str
    devices: int
    num_nodes: int
    memory: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    checkpoint_bytes: int = 0
    assumed: Sequence[str] = ()
    failure: str | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that a rank holds at one moment."""
        return sum(self.memory.values())


Program = "str | Callable[[], nn.Module]"


def plan(
    program: str | Callable[[], nn.Module],
    *,
    strategies: Sequence[str],
    devices: int,
    num_nodes: int = 1,
    arguments: Sequence[str] = (),
    is_loud: bool = False,
    **options: Any,
) -> list[Plan]:
    """Main process. Plan for a program under each strategy. It needs no device and no memory for the model.

    Each plan is made in a copy of this process, in which the program runs under the strategy's own code up to its
    second optimizer step, as rank 0 of a world that doesn't exist, with tensors that have no memory.

    Args:
        program: path of a script; `"module:Class"` of a `core.Module` with a `train_dataloader`; or a function that
            makes one.
        strategies: as on the command line, such as `"parallel:data=2,shard=4"`.
        devices: ranks a node.
        num_nodes: nodes.
        arguments: of the script.
        is_loud: let the program print.
        options: arguments of Trainer that replace the program's, such as `precision`.
    """
    run = _runner(program, list(arguments))
    return [
        Plan(str(each), devices, num_nodes, **_rehearsed(run, each, devices, num_nodes, options, is_loud))
        for each in parse_contenders(strategies)
    ]


def _rehearsed(
    run: Callable[[], None], each: Contender, devices: int, num_nodes: int, options: Mapping[str, Any], is_loud: bool
) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}

    def rehearse(rank: int, meeting: str | None, tell: Callable[[Any], None]) -> None:
        from core_plan.rehearsal.rehearse import Rehearsed

        Rehearsed(each, devices, num_nodes, given, tell, rank, meeting)
        run()

    (found,) = in_children([functools.partial(rehearse, 0, None)], timeout_s=_TIMEOUT_S, is_loud=is_loud)
    world_size = devices * num_nodes
    if "failure" not in found or found.pop("is_refusal", False) or not 1 < world_size <= _MOST_PROCESSES:
        return found
    with tempfile.TemporaryDirectory() as folder:
        ranks = [functools.partial(rehearse, rank, f"{folder}/meeting") for rank in range(world_size)]
        every = in_children(ranks, timeout_s=_TIMEOUT_S, is_loud=is_loud)
    if failed := [one for one in every if "failure" in one]:
        return {"failure": failed[0]["failure"]}
    return max(every, key=lambda one: sum(one["memory"].values()))


def _runner(program: str | Callable[[], nn.Module], arguments: list[str]) -> Callable[[], None]:
    """A function that runs the program to its end."""
    if callable(program):
        return functools.partial(_fit, program)
    if os.path.isfile(program):
        return functools.partial(_run_script, os.path.abspath(program), arguments)
    module, colon, name = program.partition(":")
    if not (colon and module and name):
        raise ConfigurationError(f"{program!r}: expected a script's path, or module:Class.")
    return functools.partial(_fit, lambda: _find(module, name)())


def _find(module: str, name: str) -> Callable[[], nn.Module]:
    sys.path.insert(0, os.getcwd())
    found: Callable[[], nn.Module] = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    return found


def _fit(make: Callable[[], nn.Module]) -> None:
    from core import Trainer

    Trainer().fit(make())  # type: ignore[arg-type]  # the user's word


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(main))  # the user's own program
