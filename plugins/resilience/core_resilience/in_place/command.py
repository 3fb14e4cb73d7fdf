"""`core go-on`: a script in several processes, which go on when one of them is lost."""

from __future__ import annotations

import os
import sys
import zlib

import click

from core.cli import say
from core.contract import LaunchError
from core_resilience.in_place import kept_states
from core_resilience.in_place.launcher import RoundLauncher
from core_resilience.in_place.options import Options
from core_resilience.in_place.relay import Relay

__all__ = ["go_on"]


@click.command(
    short_help="Run a script in processes that go on when one is lost.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--devices", type=click.IntRange(min=1), required=True, metavar="N", help="Processes a node."
)
@click.option(
    "--spares",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Processes that wait, a node.",
)
@click.option(
    "--min-devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go on with fewer, down to this number.",
)
@click.option(
    "--multiple-of",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Go on with a multiple of this number of processes a node.",
)
@click.option("--num-nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option(
    "--min-nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go on with fewer, down to this number.",
)
@click.option(
    "--node-rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="0 leads.",
)
@click.option(
    "--main-address",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Node 0 listens there.",
)
@click.option(
    "--main-port", type=click.IntRange(1, 65535), default=29400, show_default=True, metavar="PORT"
)
@click.option(
    "--max-losses",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Lost processes and nodes that end no run.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def go_on(
    devices: int,
    spares: int,
    min_devices: int | None,
    multiple_of: int,
    num_nodes: int,
    min_nodes: int | None,
    node_rank: int,
    main_address: str,
    main_port: int,
    max_losses: int,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT once a device, and go on in the same processes when one of them is lost.

    Where one is killed, hangs, or is lost with its node, the others leave what they do and run
    SCRIPT again, with a process in its place or with fewer. SCRIPT goes on from its newest state:
    pass ckpt_path="last" to fit, and callbacks=MemoryCheckpoint().

    With several nodes, run it on each of them. It ends with node 0.
    """
    if not hasattr(os, "pidfd_open"):
        raise click.UsageError(
            "it needs Linux 5.3 or later. core run works here, and ends with a rank that is lost."
        )
    least_devices = devices if min_devices is None else min(min_devices, devices)
    if num_nodes > 1 and least_devices < devices:
        raise click.BadParameter(
            "with several nodes all have --devices; see --min-nodes.", param_hint="--min-devices"
        )
    if devices % multiple_of:
        raise click.BadParameter(f"--devices {devices} isn't one.", param_hint="--multiple-of")
    if not is_module and not os.path.isfile(script):
        raise click.BadParameter(
            f"there is no file {script!r} in {os.getcwd()}.", param_hint="SCRIPT"
        )
    called = [script, *arguments]
    if is_module:
        called = ["-m", *called]
    if node_rank:
        sys.exit(Relay(called, (main_address, main_port)).run())
    least_nodes = num_nodes if min_nodes is None else min(min_nodes, num_nodes)
    options = Options(
        num_nodes,
        least_nodes,
        devices,
        least_devices,
        multiple_of,
        spares,
        max_losses,
        main_address,
        main_port,
    )
    run_id = f"go-on-{zlib.crc32(chr(0).join([os.getcwd(), *called]).encode()):08x}"
    kept_states.copy_to_memory(run_id)
    launcher = RoundLauncher(options, called, run_id)
    code = launcher.run()
    if not code:
        kept_states.remove_from_disk(run_id)
    elif launcher.gave_up:
        _keep(run_id)
    sys.exit(code)


def _keep(run_id: str) -> None:
    """Keep on the disk what is in memory, and say where."""
    try:
        folder = kept_states.copy_to_disk(run_id)
    except (OSError, LaunchError) as error:
        say(
            "core go-on: The newest state is in memory only, and can't be copied to the disk: "
            f"{error}",
            err=True,
        )
    else:
        if folder is not None:
            text = (
                f"The newest state in memory is in {folder} too. The same command goes on from it."
            )
            say(f"core go-on: {text}", err=True)
