"""The command `core` itself: its group, its errors and its exit codes.

Exit codes: 0 done; 1 an error that the message explains, or something that `check` or `doctor` found broken; 2 the
command line can't be understood.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from typing import Any

import click

from core._version import __version__
from core.cli.check import check
from core.cli.checkpoint import checkpoint
from core.cli.describe import describe
from core.cli.doctor import doctor
from core.cli.explain import explain
from core.cli.listings import listing_commands
from core.cli.new_plugin import new_plugin
from core.contract.errors import CoreError

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    """Commands that show a `CoreError` as its message, and know what a misspelt command was meant to be."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CoreError as error:
            raise click.ClickException(str(error)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=3)
            advice = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{advice}", ctx) from error


_EXAMPLES = """\b
Examples:
  core list-strategies                      what strategy="..." can be
  core describe ddp                         the options of one
  core explain --strategy ddp --devices 2   what a run would use, and why
  core doctor                               is everything in order here?
  core checkpoint inspect last.ckpt         what is in it, and who wrote it?
  core new-plugin acme                      a package for your own backend
  core check acme                           can it do what a backend must?
"""


@click.group(cls=_Group, context_settings=_SETTINGS, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="core", message="%(prog)s %(version)s")
@click.pass_context
def command(ctx: click.Context) -> None:
    """See which backends are installed, what they offer, and what a run would use.

    A backend is a package of its own: `pip install core-ddp`.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


command.add_command(describe)
command.add_command(explain)
command.add_command(doctor)
command.add_command(checkpoint)
command.add_command(new_plugin)
command.add_command(check)
for listing_command in listing_commands():
    command.add_command(listing_command)


def main() -> None:
    """Run the command line of this process."""
    warnings.showwarning = _show_warning
    try:
        command(prog_name="core")
    finally:
        _flush()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A user of the command has no use for the line of code that warns."""
    click.echo(f"Warning: {message}", err=True)


def _flush() -> None:
    """Write what is left, or drop it if the reader (`| head`) has gone, before the interpreter tries and complains."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
