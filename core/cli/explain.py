"""`core explain`: what a run would use, with the reason for every choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from core.cli.layout import say, say_json, styled, table

if TYPE_CHECKING:
    from core.resolve import Decision


_EXAMPLES = """\b
Examples:
  core explain
  core explain --strategy ddp --accelerator cpu --devices 2
  core explain --devices 8 --num-nodes 4 --precision bf16-mixed
  core explain --strategy fsdp --model train:build_model
"""


@click.command(short_help="Show what a run would use, and why.", epilog=_EXAMPLES)
@click.option("--strategy", default="auto", show_default=True, metavar="NAME")
@click.option("--accelerator", default="auto", show_default=True, metavar="NAME")
@click.option("--devices", default="auto", show_default=True, metavar="N|LIST", help="2, -1 (all), 1,3 or auto.")
@click.option("--num-nodes", type=int, default=1, show_default=True, metavar="N")
@click.option("--precision", default=None, metavar="NAME", help="16-mixed, bf16-mixed, ...  [default: 32-true]")
@click.option("--plugin", "plugins", multiple=True, metavar="NAME", help="As in plugins=[...]; may be repeated.")
@click.option("--model", default=None, metavar="MODULE:NAME", help="Also show the units of a model.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
def explain(model: str | None, as_json: bool, **arguments: Any) -> None:
    """Show what a run with these arguments would use on this machine, and why. No process is started."""
    from core.resolve import resolve

    decisions = list(resolve(**arguments).decisions)
    if model is not None:
        from core.cli.model_units import decide_units

        decisions.append(decide_units(model))
    if as_json:
        say_json([decision._asdict() for decision in decisions])
        return
    for line in table(["What", "Choice", "Why"], [_cells(decision) for decision in decisions]):
        say(line)


def _cells(decision: Decision) -> list[str]:
    provider = f" (from {decision.provider})" if decision.provider else ""
    return [decision.subject, styled(decision.choice, bold=True), f"{decision.reason}{provider}"]
