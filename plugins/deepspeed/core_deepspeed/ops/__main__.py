"""`python -m core_deepspeed.ops`: compile ahead what DeepSpeed would compile in the first run."""

from __future__ import annotations

import sys
import time
from importlib import import_module

import click

from core import CoreError
from core_deepspeed import library
from core_deepspeed.ops import NAMES, check, locks
from core_deepspeed.ops.preflight import folder_of, is_compiled, shipped
from core_deepspeed.ops.telling import telling

_names = click.argument("names", nargs=-1, type=click.Choice(list(NAMES)), metavar="[NAMES]...")


@click.group(help=f"What DeepSpeed compiles on this machine: {', '.join(NAMES)}.")
def ops() -> None:
    """The command."""


@ops.command("check")
@_names
def check_command(names: tuple[str, ...]) -> None:
    """Show what is compiled, and what prevents it. Exit code 1 if something does."""
    sound = True
    for name in names or NAMES:
        state, is_sound = _state_of(name)
        sound &= is_sound
        click.echo(f"{name:20} {state}")
    sys.exit(not sound)


@ops.command()
@_names
def build(names: tuple[str, ...]) -> None:
    """Compile, one after the other; without names what offloading to the CPU needs."""
    chosen = names or ("cpu_adam",)
    try:
        check(chosen)
        library.load()
    except CoreError as error:
        raise click.ClickException(str(error)) from error
    accelerator = import_module("deepspeed.accelerator").get_accelerator()
    for name in chosen:
        started = time.monotonic()
        with telling([name]):
            accelerator.create_op_builder(NAMES[name]).load()
        click.echo(f"{name:20} {time.monotonic() - started:.0f} s")


def _state_of(name: str) -> tuple[str, bool]:
    """The state in words, and True if it can be used."""
    if name in shipped():
        return "was compiled with DeepSpeed", True
    lock = folder_of(name) / "lock"
    if locks.is_stale(lock):
        return locks.stale(name, lock), False
    if locks.is_kept(lock):
        return f"process {locks.holder_of(lock)} compiles it", True
    return (f"is compiled: {folder_of(name)}" if is_compiled(name) else "is not compiled yet"), True


if __name__ == "__main__":
    ops(prog_name="python -m core_deepspeed.ops")
