"""`core go-on`: a script in several processes, which go on when one of them is lost."""

from __future__ import annotations

import os
import sys
import zlib

import click

from core.cli import say
from core_resilience.in_place import kept_states
from core_resilience.in_place.launcher import Launcher
from core_resilience.in_place.options import Options


@click.command(
    short_help="Run a script in processes that go on when one is lost.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--devices", type=click.IntRange(min=1), required=True, metavar="N", help="Processes of this node.")
@click.option("--spares", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Further ones.")
@click.option("--min-devices", type=click.IntRange(min=1), metavar="N", help="Go on with fewer, down to this number.")
@click.option("--multiple-of", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--max-losses", type=click.IntRange(min=0), default=3, show_default=True, metavar="N")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def go_on(
    devices: int,
    spares: int,
    min_devices: int | None,
    multiple_of: int,
    max_losses: int,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT in N processes of this node, and go on in those that are left when one is killed."""
    options = Options(devices, spares, min(min_devices or devices, devices), multiple_of, max_losses)
    own = "\0".join([os.getcwd(), script, *arguments])
    run_id = f"go-on-{zlib.crc32(own.encode()):08x}"
    launcher = Launcher(options, [*(["-m"] if is_module else []), script, *arguments], run_id)
    kept_states.copy_to_memory(run_id)
    code = launcher.run()
    if not code:
        kept_states.remove_from_disk(run_id)
    elif launcher.gave_up and (folder := kept_states.copy_to_disk(run_id)):
        say(f"core go-on: The newest state in memory is in {folder} too. The same command goes on from it.", err=True)
    sys.exit(code)
