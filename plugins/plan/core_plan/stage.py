"""A program under one strategy, in processes that are made for it."""

from __future__ import annotations

import functools
import importlib
import os
import resource
import sys
import tempfile
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from core import ConfigurationError
from core_plan.child import in_children

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from core_plan.contender import Contender

_TIMEOUT_S = 120.0
MOST_PROCESSES = 8
"""A strategy whose ranks do different things, such as a pipeline's, is rehearsed by all of them: by
at most so many.
"""


def _import_once() -> None:
    """Import here what each rehearsal needs, in a fork of this process."""
    import torch._dynamo  # noqa: F401  # by every optimizer

    import core_plan.rehearsal.proved  # noqa: F401


@dataclass(frozen=True)
class Stage:
    """Where a program is rehearsed under one strategy.

    Attributes:
        run: the program.
        contender: the strategy.
        devices, num_nodes: the ranks.
        options: arguments of Trainer or Fabric; None isn't given.
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
        every = self.each(range(num_processes), meet=num_processes > 1, is_real=is_real)
        # a rank's own, before lost connections to it
        if failed := [one for one in every if "failure" in one]:
            return max(
                failed, key=lambda one: (bool(one.get("is_refusal")), "gloo" not in one["failure"])
            )
        return max(every, key=lambda one: sum(one["memory"].values()))

    def each(
        self,
        ranks: Sequence[int],
        *,
        meet: bool,
        is_real: bool = False,
        objects: Mapping[str, list[str]] | None = None,
    ) -> list[dict[str, Any]]:
        """The findings of some ranks, each of a process.

        Args:
            ranks: which ones.
            meet: they exchange what is small; else each pretends the others.
            is_real: with real tensors.
            objects: find all that is wrong, see `Proved`; None for a plan.
        """

        def child(rank: int, meeting: str | None, report: Callable[[Any], None]) -> None:
            from core_plan.rehearsal.proved import Proved
            from core_plan.rehearsal.rehearse import Rehearsed

            if is_real:  # a model whose size nobody knows ends by its own error
                most = available_bytes() // len(ranks)
                resource.setrlimit(
                    resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1])
                )
            given = {name: value for name, value in self.options.items() if value is not None}
            place = (self.devices, self.num_nodes, given, report, rank, meeting)
            options: dict[str, Any] = {"is_real": is_real}
            if meet and len(ranks) < self.devices * self.num_nodes:
                options["peers"] = ranks
            if objects is None:
                Rehearsed(self.contender, *place, **options)
                self.run()
            else:
                Proved(self.contender, *place, **options, objects=objects).prove(self.run)

        with tempfile.TemporaryDirectory() as folder:
            meeting = f"{folder}/meeting" if meet else None
            functions = [functools.partial(child, rank, meeting) for rank in ranks]
            return in_children(functions, timeout_s=_TIMEOUT_S, is_loud=self.is_loud)


def available_bytes() -> int:
    """Memory of the host that nobody uses."""
    # macOS doesn't say how many are free.
    pages = os.sysconf(
        "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    )
    return pages * os.sysconf("SC_PAGE_SIZE")


def runner(program: str | Callable[[], nn.Module], arguments: list[str]) -> Callable[[], None]:
    """Main process. A function that runs the program to its end, in a fork of this process."""
    _import_once()
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
