"""`core run`: a script in several processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from core.cli.layout import say_all
from core.cli.ranks import run_by_torchrun, run_here
from core.registry import PRELUDES, Status, load_prelude, plugin_manager

_NAMED = "core.cli.run.preludes"
"""The key in click's context under which the preludes stand that flags have named."""

_OF_OTHERS = {
    "nproc": "devices",
    "nproc-per-node": "devices",
    "nnodes": "num-nodes",
    "master-addr": "main-address",
    "master-port": "main-port",
}
"""Options of torchrun and mpirun, and those of `core run` that do the same."""


def _own_name(option: str) -> str:
    """The name of an option that was written as here, or as for torchrun."""
    dashed = option.replace("_", "-")
    return _OF_OTHERS.get(dashed, dashed)


_EXAMPLES = """\b
Examples:
  core run --devices 2 train.py --lr 0.1
  core run --devices 8 --num-nodes 2 --node-rank 0 --main-address node0 train.py
  core run --devices 2 -m package.train
"""


class _RunCommand(click.Command):
    """The command, with a flag for each prelude that an installed package offers. None is imported
    for it.
    """

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
                help=f"The same as --with {alias}: {offer.summary} ({offer}, {offer.spec.target}).",
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
    short_help="Run a script in several processes.",
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "token_normalize_func": _own_name},
)
@click.option(
    "--devices",
    metavar="N",
    help="Processes a node: 2, or auto, the default. Preludes such as --lightning leave it to "
    "SCRIPT by default.",
)
@click.option("--num-nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option(
    "--main-address", default="127.0.0.1", show_default=True, metavar="HOST", help="Of node 0."
)
@click.option(
    "--main-port", type=click.IntRange(1, 65535), default=29400, show_default=True, metavar="PORT"
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    metavar="N",
    help="How often a failed run begins again.",
)
@click.option(
    "--with",
    "preludes",
    multiple=True,
    metavar="NAME",
    help="A prelude of an installed package; see core list plugins.",
)
@click.option(
    "--explain",
    "explains",
    is_flag=True,
    help="Run nothing: report what SCRIPT uses that a prelude has, and lacks.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    devices: str | None,
    num_nodes: int,
    node_rank: int,
    main_address: str,
    main_port: int,
    max_restarts: int | None,
    preludes: tuple[str, ...],
    explains: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT once a device. Where a process fails, a line below its error says which.

    With several nodes, run it on each of them. The Trainer or Fabric in SCRIPT takes the processes
    that it finds; it needs no `devices=` then, or the same. torchrun, which has more options, makes
    the processes unless --devices is a number and neither --num-nodes, --max-restarts, LOGLEVEL nor
    a variable of torchrun (PET_...) is set.

    A prelude is a function of an installed package that is called in each process before SCRIPT.
    One for programs that start their own processes leaves that to them: SCRIPT runs once, unless
    --devices or --num-nodes is given.
    """
    names = list(dict.fromkeys([*click.get_current_context().meta.get(_NAMED, []), *preludes]))
    if explains:
        _check_script(script, is_module=False)
        _explain(names, script)
    is_plain = devices is None and num_nodes == 1
    runs_once = is_plain and any(
        getattr(load_prelude(name), "owns_processes", False) for name in names
    )
    devices = devices or "auto"
    torchrun = _torchrun(devices, num_nodes, node_rank, main_address, main_port, max_restarts)
    _check_script(script, is_module)
    called = ["-m", "core.cli.rank_program", ",".join(names)]
    if is_module:
        called.append("-m")
    called += [script, *arguments]
    if runs_once:
        os.execv(sys.executable, [sys.executable, *called])
    if torchrun:
        sys.exit(run_by_torchrun([*torchrun, *called]))
    sys.exit(run_here(int(devices), called))


def _torchrun(
    devices: str,
    num_nodes: int,
    node_rank: int,
    main_address: str,
    main_port: int,
    max_restarts: int | None,
) -> list[str]:
    """The options of torchrun; none where nothing is asked for that takes it."""
    if not (devices == "auto" or (devices.isdecimal() and int(devices))):
        raise click.BadParameter(
            f"expected a number of processes from 1, or auto; got {devices!r}.",
            param_hint="--devices",
        )
    if node_rank >= num_nodes:
        raise click.BadParameter(
            f"expected at most {num_nodes - 1}, got {node_rank}: nodes count from 0.",
            param_hint="--node-rank",
        )
    is_set = any(name == "LOGLEVEL" or name.startswith("PET_") for name in os.environ)
    if devices != "auto" and num_nodes == 1 and max_restarts is None and not is_set:
        return []
    nodes = ["--standalone"]
    if num_nodes > 1:
        address = ["--master-addr", main_address, "--master-port", str(main_port)]
        nodes = ["--nnodes", str(num_nodes), "--node-rank", str(node_rank), *address]
    options = [*nodes, "--nproc-per-node", devices]
    if max_restarts is not None:
        options += ["--max-restarts", str(max_restarts)]
    return options


def _check_script(script: str, is_module: bool) -> None:
    """Refuse a file that isn't there, once, before each rank does."""
    if not is_module and not os.path.isfile(script):
        raise click.BadParameter(
            f"there is no file {script!r} in {os.getcwd()}.", param_hint="SCRIPT"
        )


def _explain(names: list[str], script: str) -> NoReturn:
    """Print the reports of preludes on a script; the status is 1 if it needs something that isn't
    there.
    """
    explains = (getattr(load_prelude(name), "explain", None) for name in names)
    found = [explain(Path(script)) for explain in explains if explain is not None]
    if not found:
        raise click.UsageError(
            "--explain needs a prelude that reports on scripts, such as --lightning."
        )
    for text, _ in found:
        say_all(text.splitlines())
    sys.exit(not all(is_whole for _, is_whole in found))
