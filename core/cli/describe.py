"""`core describe ALIAS`: what an alias stands for, and the options that it takes."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

import click

from core.cli.layout import paragraph, with_article
from core.contract.errors import ConfigurationError, CoreError, UnknownAliasError
from core.contract.kinds import KINDS
from core.registry import Registry
from core.registry.known_aliases import KNOWN_ALIASES
from core.registry.names import split_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.cli.signatures import Factory, Option

KINDS_BY_OPTION = {name.replace(" ", "-"): name for name in KINDS}
"""Name of each kind by its form on the command line."""


_EXAMPLES = """\b
Examples:
  core describe ddp
  core describe 16-mixed
  core describe xla --kind launcher
"""


@click.command(short_help="Tell what an alias stands for, and its options.", epilog=_EXAMPLES)
@click.argument("alias")
@click.option("--kind", type=click.Choice(list(KINDS_BY_OPTION)), help="Where several kinds of plugin have this alias.")
def describe(alias: str, kind: str | None) -> None:
    """Tell what ALIAS stands for, and the options that it takes, with types, defaults and meaning.

    ALIAS may be qualified by its package, `core-acme:acme`. The package is imported.
    """
    name = KINDS_BY_OPTION[kind] if kind else _kind_of(alias)
    registry: Registry[Any] = Registry(name)
    for line in _description(registry, alias):
        click.echo(line)


def _kind_of(alias: str) -> str:
    folded = split_name(alias)[1]
    kinds = [kind for kind in KINDS if Registry[Any](kind).providers_of(folded)]
    known = [kind for kind in KINDS if (kind, folded) in KNOWN_ALIASES]
    if len(kinds) > 1:
        forms = " or ".join(f"`core describe {alias} --kind {kind.replace(' ', '-')}`" for kind in kinds)
        raise ConfigurationError(f"{alias!r} is a {' and a '.join(kinds)}. Choose one: {forms}.")
    if kinds or known:
        return (kinds or known)[0]
    raise unknown_alias(alias)


def unknown_alias(alias: str) -> UnknownAliasError:
    """The error for an alias that no kind of plugin has, with what is near."""
    folded = split_name(alias)[1]
    everything = {offer.spec.alias for kind in KINDS for offer in Registry[Any](kind).offers()}
    near = difflib.get_close_matches(folded, sorted(everything), n=3)
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See `core list-strategies` and its siblings."
    return UnknownAliasError(f"Nothing is called {alias!r}. {advice}", kind="plugin", alias=alias, near=near)


def _description(registry: Registry[Any], name: str) -> Iterator[str]:
    from core.cli.signatures import look_into, options_of

    spec = registry.spec(name)
    target = registry.get(name)
    factory = look_into(target)
    offer = next(offer for offer in registry.offers() if offer.spec == spec)
    yield f"{click.style(spec.alias, bold=True)}: {with_article(spec.kind)} of {offer}"
    yield from paragraph(offer.summary)
    yield ""
    yield from _what_it_makes(registry, name, factory)
    options = options_of(factory.made or factory.function)
    yield click.style("Options" if options else "It takes no options.", bold=bool(options))
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
    head, *rest = paragraph(f"{option.name}{annotation}{default}", indent="  ") or [""]
    yield head.replace(option.name, click.style(option.name, fg="cyan"), 1)
    yield from (f"    {line.strip()}" for line in rest)
    yield from paragraph(option.doc, indent="      ")
