"""`core compare`: a program under several strategies, side by side."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core import ConfigurationError
from core.cli import say, say_json

if TYPE_CHECKING:
    from core_plan.compared.comparison import Comparison

__all__ = ["compare"]

_EXAMPLES = """\b
Examples:
  core compare train.py --strategies ddp,fsdp --devices 2
  core compare train.py --lr 0.1 --strategies ddp,parallel:pipeline=2 --devices 2 --steps 100
  core compare --strategies ddp,fsdp --devices 2 --page compared.html -- train.py --steps 5
"""


@click.command(
    short_help="Run a program under several strategies, and compare speed, memory and numbers.",
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--strategies",
    multiple=True,
    required=True,
    metavar="NAMES",
    help="With commas between them; options after a colon: ddp,parallel:data=2,shard=2. The first "
    "is the reference.",
)
@click.option(
    "--devices", type=click.IntRange(min=1), default=1, show_default=True, help="Processes a node."
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    help="Optimizer steps of a run.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Timed runs of each."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Before the program begins.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-3,
    show_default=True,
    help="By which losses may differ, as a part of the largest.",
)
@click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples of a step over all ranks, for a Trainer: the same for each strategy.",
)
@click.option("--no-weights", is_flag=True, help="Compare losses only, and spare the runs for it.")
@click.option("--no-checkpoint", is_flag=True, help="Save none.")
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False),
    help="Folder for temporary files; on several nodes one that all reach.",
)
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Of a run.")
@click.option(
    "--num-nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="As core run takes it.",
)
@click.option("--node-rank", type=click.IntRange(min=0), metavar="N", help="As core run takes it.")
@click.option("--main-address", metavar="HOST", help="As core run takes it.")
@click.option(
    "--main-port", type=click.IntRange(1, 65535), metavar="PORT", help="As core run takes it."
)
@click.option(
    "--with", "preludes", multiple=True, metavar="NAME", help="A prelude, as core run takes it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page to this file."
)
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]..."
)
def compare(program: tuple[str, ...], as_json: bool, page: Path | None, **options: Any) -> None:
    """Run SCRIPT under each strategy in turns, unchanged, and compare.

    Of each: samples a second without warm-up, peak memory, bytes sent, start-up, time and size of a
    checkpoint; and whether losses and weights are those of the first, or the first step and tensor
    at which they part.

    Options that aren't listed here are SCRIPT's own; so is everything after `--`. Its Trainer or
    Fabric gets the strategy and the devices; loggers, checkpoints and bars are off, and the run
    ends after --steps. A strategy that fails is a row with its reason. Ctrl-C prints what there is.
    """
    comparison = _prepare(program, options)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        comparison.run(lambda line: say(line, err=True))
    finally:
        signal.signal(signal.SIGTERM, before)
    _show(comparison, as_json, page)
    if comparison.interrupted:
        sys.exit(130)
    if comparison.reference is None:
        sys.exit(1)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _prepare(program: tuple[str, ...], options: dict[str, Any]) -> Comparison:
    from core_plan.compared.comparison import Comparison, Settings
    from core_plan.contender import parse_contenders

    contenders = parse_contenders(options["strategies"])
    script = next((part for part in program if part != "-m"), "")
    if program[0] != "-m" and not Path(script).is_file():
        raise click.BadParameter(f"there is no file {script!r} here.", param_hint="SCRIPT")
    places = ("devices", "num_nodes", "node_rank", "main_address", "main_port")
    given = {name: options[name] for name in places if options[name] is not None}
    handed_on = [
        part
        for name, value in given.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    handed_on += [part for name in options["preludes"] for part in ("--with", name)]
    settings = Settings(
        program=program,
        run_options=handed_on,
        devices=options["devices"],
        num_nodes=options["num_nodes"],
        steps=options["steps"],
        rounds=options["rounds"],
        seed=options["seed"],
        tolerance=options["tolerance"],
        weighs=not options["no_weights"],
        saves=not options["no_checkpoint"],
        scratch=options["scratch"] or "",
        global_batch_size=options["global_batch_size"],
        timeout_s=options["timeout"],
    )
    return Comparison.of(contenders, settings)


def _show(comparison: Comparison, as_json: bool, page: Path | None) -> None:
    from core_plan.compared.table import as_data, lines

    if as_json:
        say_json(as_data(comparison))
    else:
        for line in lines(comparison):
            say(line)
    if page is not None:
        from core_plan.compared.page import render

        try:
            page.write_text(render(comparison), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{page} can't be written: {error}") from error
        say(f"The page is in {page}.", err=as_json)
