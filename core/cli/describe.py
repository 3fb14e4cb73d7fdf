"""`core describe ALIAS`: what an alias stands for, and the options that it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from core.cli.kinds import KINDS_BY_OPTION, unknown_alias
from core.cli.layout import Shown, paragraph, say, shown, styled, with_article
from core.contract.errors import ConfigurationError, CoreError
from core.contract.kinds import KINDS
from core.registry import COMMAND_REGISTRY, Registry, known_aliases
from core.registry.names import split_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.cli.signatures import Factory, Option

_EXAMPLES = """\b
Examples:
  core describe ddp
  core describe 16-mixed
  core describe spawn --kind launcher
"""


@click.command(short_help="Show what an alias stands for, and its options.", epilog=_EXAMPLES)
@click.argument("alias")
@click.option("--kind", type=click.Choice(list(KINDS_BY_OPTION)), help="Where several kinds of plugin have this alias.")
def describe(alias: str, kind: str | None) -> None:
    """Show what ALIAS stands for, and the options that it takes, with types, defaults and meaning.

    ALIAS may be qualified by its package, `core-acme:acme`. The package is imported.
    """
    name = KINDS_BY_OPTION[kind] if kind else _kind_of(alias)
    if name == "command":
        _echo_help(alias)
        return
    registry: Registry[Any] = Registry(name)
    for line in _description(registry, alias):
        say(line)


def _echo_help(alias: str) -> None:
    command = COMMAND_REGISTRY.create(alias)
    for line in command.get_help(click.Context(command, info_name=f"core {alias}")).splitlines():
        say(line)


def _kind_of(alias: str) -> str:
    folded = split_name(alias)[1]
    kinds = [kind for kind in KINDS if Registry[Any](kind).providers_of(folded)]
    known = [kind for kind in KINDS if folded in known_aliases(kind)]
    if len(kinds) > 1:
        forms = " or ".join(f"`core describe {alias} --kind {kind.replace(' ', '-')}`" for kind in kinds)
        raise ConfigurationError(f"{alias!r} is a {' and a '.join(kinds)}. Choose one: {forms}.")
    if kinds or known:
        return (kinds or known)[0]
    raise unknown_alias(alias)


def _description(registry: Registry[Any], name: str) -> Iterator[str]:
    from core.cli.signatures import look_into, options_of

    offer = registry.offer(name)
    factory = look_into(registry.get(offer))
    yield shown(styled(offer.spec.alias, bold=True), f": {with_article(offer.spec.kind)} of {offer}")
    yield from paragraph(offer.summary)
    yield ""
    yield from _what_it_makes(registry, name, factory)
    options = options_of(factory.made or factory.function)
    yield styled("Options" if options else "It takes no options.", bold=bool(options))
    for option in options:
        yield from _option_lines(option, factory.preset)


def _what_it_makes(registry: Registry[Any], name: str, factory: Factory) -> Iterator[str]:
    made = factory.made
    if made is None:
        try:
            made = type(registry.create(name))
        except CoreError as error:
            yield from paragraph(f"A function; what it makes can't be shown: {error}")
            yield ""
            return
    preset = ", ".join(f"{option}={value!r}" for option, value in factory.preset.items())
    whole = f"{made.__module__}.{made.__qualname__}"
    a_preset_of = "A preset of " if preset or factory.function else ""
    yield from paragraph(f"{a_preset_of}{whole}{f'({preset})' if preset else ''}")
    if summary := (inspect.getdoc(made) or "").partition("\n\n")[0]:
        yield from paragraph(" ".join(summary.split()), indent="    ")
    yield ""


def _option_lines(option: Option, preset: dict[str, Any]) -> Iterator[str]:
    annotation = f": {option.annotation}" if option.annotation and not option.name.startswith("*") else ""
    default = "" if option.default is None else f" = {option.default}"
    if option.name in preset:
        default = f" = {preset[option.name]!r} (set by this alias)"
    head, *rest = paragraph(f"{option.name}{annotation}{default}", indent="  ") or [Shown()]
    yield Shown(head.replace(option.name, styled(option.name, fg="cyan"), 1))
    yield from (Shown(f"    {line.strip()}") for line in rest)
    yield from paragraph(option.doc, indent="      ")
