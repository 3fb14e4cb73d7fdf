"""`core run`: a script in several processes, which torchrun starts."""

from __future__ import annotations

import os
import sys

import click

_EXAMPLES = """\b
Examples:
  core run --devices 2 train.py --lr 0.1
  core run --devices 8 --num-nodes 2 --node-rank 0 --main-address node0 train.py
  core run --devices 2 -m package.train
"""


@click.command(
    short_help="Run a script in several processes, by torchrun.",
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--devices", default="auto", show_default=True, metavar="N", help="Processes a node: 2, or auto.")
@click.option("--num-nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--main-address", default="127.0.0.1", show_default=True, metavar="HOST", help="Of node 0.")
@click.option("--main-port", type=click.IntRange(1, 65535), default=29400, show_default=True, metavar="PORT")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    devices: str,
    num_nodes: int,
    node_rank: int,
    main_address: str,
    main_port: int,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT once a device, by `torchrun`, which becomes this process.

    With several nodes, run it on each of them. The Trainer or Fabric in SCRIPT takes the processes that it finds; it
    needs no `devices=` then, or the same. torchrun itself has more options.
    """
    if not (devices == "auto" or (devices.isdecimal() and int(devices))):
        raise click.BadParameter(f"{devices!r} is neither a number of processes nor auto.", param_hint="--devices")
    if node_rank >= num_nodes:
        raise click.BadParameter(f"node {node_rank} of {num_nodes}: nodes count from 0.", param_hint="--node-rank")
    nodes = ["--standalone"]
    if num_nodes > 1:
        address = ["--master-addr", main_address, "--master-port", str(main_port)]
        nodes = ["--nnodes", str(num_nodes), "--node-rank", str(node_rank), *address]
    command = [sys.executable, "-m", "torch.distributed.run", *nodes, "--nproc-per-node", devices]
    os.execv(sys.executable, [*command, *(["-m"] if is_module else []), script, *arguments])
