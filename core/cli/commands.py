"""The command `core` itself: its group, its errors and its exit codes.

Exit codes: 0 done; 1 an error that the message explains, or something that a command found broken;
2 the command line can't be understood.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import click

from core._version import __version__
from core.cli.layout import say_all
from core.contract.errors import CoreError, UnknownAliasError
from core.contract.spec import normalize_alias
from core.registry import COMMAND_REGISTRY, Offer, Status, known_aliases
from core.registry.builtins import CORE
from core.text.spelling import did_you_mean

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    """The commands of all installed packages. The module of one is imported when it is called.

    It shows a `CoreError` as its message, and knows what a misspelt command was meant to be.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [_shown(offer) for offer in _usable()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return COMMAND_REGISTRY.create(cmd_name)
        except UnknownAliasError:
            # Of a known package, which this error names; of any other command click says that there
            # is none.
            if normalize_alias(cmd_name.rpartition(":")[2]) in known_aliases("command"):
                raise
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries of all commands without importing any."""
        for title, is_of_core in (("Commands", True), ("Of other packages", False)):
            # commands with one summary, that of their package, share a row
            named: dict[str, list[str]] = {}
            for each in _usable():
                if (each.spec.provider == CORE) is is_of_core:
                    summary = each.summary
                    if not is_of_core:
                        summary += f" ({each})"
                    named.setdefault(summary, []).append(_shown(each))
            if named:
                with formatter.section(title):
                    formatter.write_dl([(", ".join(row), text) for text, row in named.items()])

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
            advice = did_you_mean(args[0], self.list_commands(ctx), count=3)
            raise click.UsageError(f"No such command {args[0]!r}.{advice}", ctx) from error


def _usable() -> list[Offer]:
    return sorted(
        (each for each in COMMAND_REGISTRY.offers() if each.status is Status.OK), key=_shown
    )


def _shown(offer: Offer) -> str:
    """The alias as a user of the command line writes it."""
    return offer.spec.alias.replace("_", "-")


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

    A backend is a package of its own; README says under Install how it is installed.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """Run the command line of this process."""
    warnings.showwarning = _show_warning
    try:
        command(prog_name="core")
    finally:
        # Write what is left, or drop it if the reader (`| head`) has gone, before the interpreter
        # tries and complains.
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A user of the command has no use for the line of code that warns."""
    say_all(f"Warning: {message}".split("\n"), err=True)
