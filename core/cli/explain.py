"""`core explain`: what a run would use, with the reason for every choice."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from core.cli.layout import say_all, say_json, styled, table
from core.contract import ConfigurationError, ExplainsLayout
from core.registry import STRATEGY_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from core.resolve import Decision


_EXAMPLES = """\b
Examples:
  core explain
  core explain --strategy ddp --accelerator cpu --devices 2
  core explain --devices 8 --num-nodes 4 --precision bf16-mixed
  core explain --strategy fsdp cpu_offload=True --model train:build_model
"""


@click.command(short_help="Show what a run would use, and why.", epilog=_EXAMPLES)
@click.option("--strategy", default="auto", show_default=True, metavar="NAME")
@click.option("--accelerator", default="auto", show_default=True, metavar="NAME")
@click.option(
    "--devices",
    default="auto",
    show_default=True,
    metavar="N|LIST",
    help="2, -1 (all), 1,3 or auto.",
)
@click.option("--num-nodes", type=int, default=1, show_default=True, metavar="N")
@click.option(
    "--precision",
    default=None,
    metavar="NAME",
    help="16-mixed, bf16-mixed, ...  [default: 32-true]",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="NAME",
    help="As in plugins=[...]; may be repeated.",
)
@click.option(
    "--model",
    default=None,
    metavar="MODULE:NAME",
    help="Also show the units of a model, and its layout.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE]...")
def explain(model: str | None, as_json: bool, options: Sequence[str], **arguments: Any) -> None:
    """Show what a run with these arguments would use on this machine, and why. No process is
    started.

    OPTIONs are the strategy's own, which `core describe` lists. A VALUE is read as Python or JSON,
    and else is text.
    """
    import torch  # noqa: F401  # first: the time limit for finding what is here isn't for this import

    from core.resolve import Decision, resolve

    name = arguments["strategy"]
    if options:
        arguments["strategy"] = STRATEGY_REGISTRY.create(name, **_parse(name, options))
    resolution = resolve(**arguments)
    module, strategy = None, resolution.strategy
    decisions = list(resolution.decisions)
    if options:
        [place] = [index for index, one in enumerate(decisions) if one.subject == "strategy"]
        asked = f"strategy={name!r} was asked for, with {', '.join(options)}"
        decisions[place] = decisions[place]._replace(reason=asked)
    if model is not None:
        from core.strategies import find_units

        module = _make(model)
        units = find_units(module)
        decisions.append(Decision("units", units.summary, units.reason))
    if isinstance(strategy, ExplainsLayout):
        decisions += [Decision(*row) for row in strategy.explain_layout(module)]
    elif options:
        decisions.append(
            Decision(
                "layout", "unknown", f"{type(strategy).__name__} is no core.contract.ExplainsLayout"
            )
        )
    if as_json:
        say_json([decision._asdict() for decision in decisions])
    else:
        say_all(table(["What", "Choice", "Why"], [_cells(decision) for decision in decisions]))


def _parse(strategy: str, options: Sequence[str]) -> dict[str, Any]:
    """The strategy's options by name."""
    if strategy == "auto":
        raise ConfigurationError(
            f"{options[0]}: whose option is that? Name the strategy, as in --strategy ddp."
        )
    parsed = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not (name.isidentifier() and equals):
            raise ConfigurationError(
                f"{option}: expected an option of the strategy and its value, as in timeout=60."
            )
        parsed[name] = _value(text)
    return parsed


def _value(text: str) -> Any:
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(SyntaxError, TypeError, ValueError):
            return read(text)
    return text


def _make(target: str) -> nn.Module:
    """The model that `"module:name"` names, or makes without arguments: on meta, without memory for
    its parameters.
    """
    import torch

    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"--model {target}: expected MODULE:NAME, such as train:build_model."
        )
    sys.path.insert(0, os.getcwd())
    try:
        with torch.device("meta"):
            found: Any = functools.reduce(
                getattr, name.split("."), importlib.import_module(module_name)
            )
            model = found
            if not isinstance(model, torch.nn.Module):
                model = found()
            getattr(model, "configure_model", lambda: None)()
    except Exception as cause:
        from core.registry.discovery import describe

        raise ConfigurationError(f"--model {target} can't be made: {describe(cause)}") from cause
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"--model {target}: expected a torch.nn.Module, got {type(model).__name__}."
        )
    return model


def _cells(decision: Decision) -> list[str]:
    reason = decision.reason
    if decision.provider:
        reason += f" (from {decision.provider})"
    return [decision.subject, styled(decision.choice, bold=True), reason]
