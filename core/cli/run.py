"""`core run`: a script in several processes, which torchrun starts."""

from __future__ import annotations

import os
import sys

import click

from core.registry import PRELUDES, Status, plugin_manager

_NAMED = "core.cli.run.preludes"
"""The key in click's context under which the preludes stand that flags have named."""

_EXAMPLES = """\b
Examples:
  core run --devices 2 train.py --lr 0.1
  core run --devices 8 --num-nodes 2 --node-rank 0 --main-address node0 train.py
  core run --devices 2 -m package.train
"""


class _RunCommand(click.Command):
    """The command, with a flag for each prelude that an installed package offers. None is imported for it."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        taken = {name for param in params for name in param.opts}
        offered = {
            offer.spec.alias.replace("_", "-"): offer
            for offer in plugin_manager().offers(PRELUDES)
            if offer.status is Status.OK
        }
        flags: list[click.Parameter] = [
            click.Option(
                [f"--{alias}"],
                is_flag=True,
                expose_value=False,
                callback=_note_prelude,
                help=f"The same as --with {alias}: {offer.summary} ({offer}).",
            )
            for alias, offer in offered.items()
            if f"--{alias}" not in taken
        ]
        return [*flags, *params]


def _note_prelude(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta.setdefault(_NAMED, []).append(param.opts[0].removeprefix("--"))


@click.command(
    cls=_RunCommand,
    short_help="Run a script in several processes, by torchrun.",
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--devices", default="auto", show_default=True, metavar="N", help="Processes a node: 2, or auto.")
@click.option("--num-nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--main-address", default="127.0.0.1", show_default=True, metavar="HOST", help="Of node 0.")
@click.option("--main-port", type=click.IntRange(1, 65535), default=29400, show_default=True, metavar="PORT")
@click.option(
    "--with",
    "preludes",
    multiple=True,
    metavar="NAME",
    help="A prelude of an installed package; see core list-plugins.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    devices: str,
    num_nodes: int,
    node_rank: int,
    main_address: str,
    main_port: int,
    preludes: tuple[str, ...],
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT once a device, by `torchrun`, in this process. When it ends, torchrun prints one line.

    With several nodes, run it on each of them. The Trainer or Fabric in SCRIPT takes the processes that it finds; it
    needs no `devices=` then, or the same. torchrun itself has more options.

    A prelude is a function of an installed package that is called in each process before SCRIPT.
    """
    if not (devices == "auto" or (devices.isdecimal() and int(devices))):
        raise click.BadParameter(f"{devices!r} is neither a number of processes nor auto.", param_hint="--devices")
    if node_rank >= num_nodes:
        raise click.BadParameter(f"node {node_rank} of {num_nodes}: nodes count from 0.", param_hint="--node-rank")
    nodes = ["--standalone"]
    if num_nodes > 1:
        address = ["--master-addr", main_address, "--master-port", str(main_port)]
        nodes = ["--nnodes", str(num_nodes), "--node-rank", str(node_rank), *address]
    command = [sys.executable, "-m", "core.cli.torchrun", *nodes, "--nproc-per-node", devices]
    called = [*(["-m"] if is_module else []), script, *arguments]
    if names := ",".join(dict.fromkeys([*click.get_current_context().meta.get(_NAMED, []), *preludes])):
        called = ["-m", "core.cli.with_preludes", names, *called]
    os.execv(sys.executable, [*command, *called])
