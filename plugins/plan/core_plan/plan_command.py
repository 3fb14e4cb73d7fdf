"""`core plan`: what a program needs under each strategy, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core import ConfigurationError
from core.cli import say, say_json, shown, size_text, styled
from core.registry import STRATEGY_REGISTRY
from core_plan.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core_plan.fits import Assessment, Change
    from core_plan.planner import MemoryPlan
    from core_plan.prover import ProgramProof

__all__ = ["plan"]

_EXAMPLES = """\b
Examples:
  core plan train.py --devices 8 --memory 80GiB
  core plan train.py --devices 8 --num-nodes 128 --memory 80GiB --strategies fsdp,parallel:shard=8,tensor=8
  core plan my_models:Llama --devices 8 --precision bf16-true --page plan.html
  core plan train.py --devices 8 --json -- --width 4096 > plan.json
  core plan train.py --devices 8 --num-nodes 512 --strategies parallel:tensor=8,context=4,data=128 --prove
"""  # noqa: E501


@click.command(
    short_help="Say what a program needs under each strategy, and what fits.", epilog=_EXAMPLES
)
@click.argument("program")
@click.argument("arguments", nargs=-1)
@click.option(
    "--devices", type=click.IntRange(1), default=1, show_default=True, help="Ranks a node."
)
@click.option("--num-nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes.")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Of a device, such as 80GiB: say what fits, and what would make it fit.",
)
@click.option(
    "--strategies",
    metavar="NAMES",
    help="Such as ddp,parallel:shard=4,tensor=2. [default: the program's and all others]",
)
@click.option("--precision", metavar="NAME", help="In place of the program's.")
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with charts."
)
@click.option(
    "--over-devices",
    is_flag=True,
    help="Plan for fewer devices too; the page draws the peak over them.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Say in place of what it needs whether it is right: a line for each thing that isn't.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--show-output",
    is_flag=True,
    help="Show what the program prints, and tracebacks of what is refused.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show what is sent by operation and axis, and all assumed values.",
)
def plan(
    program: str,
    arguments: tuple[str, ...],
    devices: int,
    num_nodes: int,
    memory: str | None,
    strategies: str | None,
    precision: str | None,
    page: Path | None,
    over_devices: bool,
    prove: bool,
    as_json: bool,
    show_output: bool,
    verbose: bool,
) -> None:
    """Plan for PROGRAM, a script or `module:Class`, on devices that needn't be there.

    The program runs up to its second optimizer step under each strategy's own code, on tensors that
    have no memory, as one rank of a world that doesn't exist. What it prints and writes with core
    is left out. Its own ARGUMENTS follow after `--`.
    """
    limit_bytes = None if memory is None else parse_size(memory)
    planning = _Planning(
        program, arguments, devices, num_nodes, precision, is_loud=show_output and not as_json
    )
    if prove:
        _prove(planning, strategies, as_json=as_json)
        return
    assessments = planning.assessments(strategies, limit_bytes)
    curves = planning.curves([each.plan for each in assessments]) if over_devices else {}
    if page is not None:
        from core_plan.plan_page import render

        _write(page, render(planning.title, assessments, curves))
    if as_json:
        from core_plan.table import as_json as row

        place = {**planning.place, "limit_bytes": limit_bytes}
        say_json({**place, "plans": [row(each) for each in assessments]})
        return
    from core_plan.table import print_assessments

    room = "" if limit_bytes is None else f", {size_text(limit_bytes)} each"
    say(styled(planning.title, bold=True), room)
    print_assessments(assessments, verbose=verbose)
    if page is not None:
        say(f"The page is {page}.")


def _prove(planning: _Planning, strategies: str | None, *, as_json: bool) -> None:
    """Print what is wrong under each strategy, and end with status 1 if anything is or may be."""
    from core_plan.proof_lines import print_proof, row

    proofs = planning.proofs(strategies)
    if as_json:
        say_json({**planning.place, "proofs": [row(each) for each in proofs]})
    else:
        say(styled(planning.title, bold=True))
        for each in proofs:
            print_proof(each)
    if any(each.findings for each in proofs):
        raise click.exceptions.Exit(1)


class _Planning:
    """One call of the command."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        devices: int,
        num_nodes: int,
        precision: str | None,
        *,
        is_loud: bool,
    ) -> None:
        self._program, self._arguments = program, arguments
        self._devices, self._num_nodes = devices, num_nodes
        self._options: dict[str, Any] = {} if precision is None else {"precision": precision}
        self._is_loud = is_loud
        ranks = devices * num_nodes
        self.place = {"program": program, "devices": devices, "num_nodes": num_nodes}
        self.title = f"{program} on {ranks} device{'s' * (ranks != 1)}"

    def assessments(self, strategies: str | None, limit_bytes: int | None) -> list[Assessment]:
        """One for each strategy, in their order."""
        from core_plan.fits import judge

        # First those that the program itself may register: if it doesn't, that is an error.
        waiting = sorted(
            self._contenders(strategies),
            key=lambda each: each.partition(":")[0] in STRATEGY_REGISTRY,
        )
        found: dict[str, Assessment] = {}
        while waiting:
            contender = waiting.pop(0)
            number = len(found) + 1
            made = self._plan(
                contender,
                self._devices,
                self._num_nodes,
                self._options,
                what=f"{contender} ({number} of {number + len(waiting)})",
            )
            if "Error: Unknown strategy " in str(made.failure):
                raise ConfigurationError(made.failure)
            found[contender] = judge(made, limit_bytes, self._options, self._changed)
            own = made.own_strategy
            if own and not strategies and own not in (*found, *waiting):
                waiting.insert(0, own)
        return [*found.values()]

    def proofs(self, strategies: str | None) -> list[ProgramProof]:
        """One for each strategy, in their order."""
        from core_plan.prover import prove

        found: list[ProgramProof] = []
        for contender in self._contenders(strategies):
            click.echo(shown("Rehearsing ", contender), err=True)
            found += prove(
                self._program,
                strategies=[contender],
                devices=self._devices,
                num_nodes=self._num_nodes,
                arguments=self._arguments,
                is_loud=self._is_loud,
                **self._options,
            )
        return found

    def curves(self, plans: Sequence[MemoryPlan]) -> dict[str, list[MemoryPlan]]:
        """Plans for fewer devices, then those that are given, by strategy; those alone that there
        are.
        """
        found: dict[str, list[MemoryPlan]] = {}
        for plan in plans:
            if plan.failure:
                continue
            fewer = [
                self._plan(
                    plan.strategy,
                    *place,
                    self._options,
                    what=f"{plan.strategy} on {place[0] * place[1]}",
                )
                for place in fewer_devices(self._devices, self._num_nodes)
            ]
            found[plan.strategy] = [*(each for each in fewer if each.failure is None), plan]
        return found

    def _contenders(self, strategies: str | None) -> list[str]:
        """The strategies that are given, or else those that are installed."""
        from core_plan.contender import parse_contenders
        from core_plan.layouts import installed_strategies

        names = [strategies] if strategies else installed_strategies(self._devices, self._num_nodes)
        return [str(each) for each in parse_contenders(names)]

    def _changed(self, change: Change) -> MemoryPlan:
        what = f"{change.contender} with {change.what}"
        return self._plan(
            str(change.contender), change.devices, change.num_nodes, change.options, what=what
        )

    def _plan(
        self, strategy: str, devices: int, num_nodes: int, options: Mapping[str, Any], *, what: str
    ) -> MemoryPlan:
        from core_plan.planner import plan as make

        click.echo(shown("Rehearsing ", what), err=True)
        [made] = make(
            self._program,
            strategies=[strategy],
            devices=devices,
            num_nodes=num_nodes,
            arguments=self._arguments,
            is_loud=self._is_loud,
            **options,
        )
        return made


def fewer_devices(devices: int, num_nodes: int) -> list[tuple[int, int]]:
    """Devices a node and nodes on the way to so many: one device, one node, and a few numbers of
    nodes between.
    """
    within = [(size, 1) for size in (1, 2, 4) if size < devices]
    beyond = [(devices, 4**power) for power in range(6) if 4**power < num_nodes]
    return within + beyond


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written: {error}") from error
