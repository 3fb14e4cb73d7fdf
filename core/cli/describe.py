"""`core describe ALIAS`: what an alias stands for, and the options that it takes."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from core.cli.kinds import KINDS_BY_OPTION, unknown_alias
from core.cli.layout import Shown, paragraph, say_all, shown, styled, with_article
from core.contract.errors import ConfigurationError, CoreError
from core.contract.kinds import KINDS
from core.registry import COMMAND_REGISTRY, Registry, known_aliases
from core.registry.names import split_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION = re.compile(r"(Args|Arguments|Attributes|Parameters):\s*$")
_ENTRY = re.compile(r"(?P<name>\*{0,2}\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_CATCH_ALL = inspect.Parameter.VAR_KEYWORD
_UNNAMED = inspect.Parameter.VAR_POSITIONAL

_EXAMPLES = """\b
Examples:
  core describe ddp
  core describe 16-mixed
  core describe spawn --kind launcher
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One argument.

    Attributes:
        name: `**name` for what is passed on.
        annotation: its type as it is written; empty if it isn't.
        default: as it is written; None if the argument must be given.
        doc: its entry in the docstring.
    """

    name: str
    annotation: str
    default: str | None
    doc: str


@click.command(short_help="Show what an alias stands for, and its options.", epilog=_EXAMPLES)
@click.argument("alias")
@click.option("--kind", type=click.Choice(list(KINDS_BY_OPTION)), help="Where several kinds of plugin have this alias.")
def describe(alias: str, kind: str | None) -> None:
    """Show what ALIAS stands for, and the options that it takes, with types, defaults and meaning.

    ALIAS may be qualified by its package, `core-acme:acme`. The package is imported.
    """
    name = KINDS_BY_OPTION[kind] if kind else _kind_of(alias)
    if name != "command":
        say_all(_description(Registry[Any](name), alias))
    else:
        command = COMMAND_REGISTRY.create(alias)
        say_all(command.get_help(click.Context(command, info_name=f"core {alias}")).splitlines())


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
    offer = registry.offer(name)
    target, preset = look_into(registry.get(offer))
    yield shown(styled(offer.spec.alias, bold=True), f": {with_article(offer.spec.kind)} of {offer}")
    yield from paragraph(offer.summary)
    yield ""
    yield from _what_it_makes(registry, name, target, preset)
    options = options_of(target)
    yield styled("Options" if options else "It takes no options.", bold=bool(options))
    for option in options:
        yield from _option_lines(option, preset)


def _what_it_makes(registry: Registry[Any], name: str, made: Any, preset: dict[str, object]) -> Iterator[str]:
    is_function = not isinstance(made, type)
    if is_function:
        try:
            made = type(registry.create(name))
        except CoreError as error:
            yield from paragraph(f"A function; what it makes can't be shown: {error}")
            yield ""
            return
    options = ", ".join(f"{option}={value!r}" for option, value in preset.items())
    whole = f"{made.__module__}.{made.__qualname__}"
    a_preset_of = "A preset of " if preset or is_function else ""
    yield from paragraph(f"{a_preset_of}{whole}{f'({options})' if preset else ''}")
    if summary := (inspect.getdoc(made) or "").partition("\n\n")[0]:
        yield from paragraph(" ".join(summary.split()), indent="    ")
    yield ""


def _option_lines(option: Option, preset: dict[str, object]) -> Iterator[str]:
    annotation = f": {option.annotation}" if option.annotation and not option.name.startswith("*") else ""
    default = "" if option.default is None else f" = {option.default}"
    if option.name in preset:
        default = f" = {preset[option.name]!r} (set by this alias)"
    head, *rest = paragraph(f"{option.name}{annotation}{default}", indent="  ") or [Shown()]
    yield Shown(head.replace(option.name, styled(option.name, fg="cyan"), 1))
    yield from (Shown(f"    {line.strip()}") for line in rest)
    yield from paragraph(option.doc, indent="      ")


def look_into(target: Any) -> tuple[Any, dict[str, object]]:
    """The callable behind a class, a `functools.partial` or a function, and its preset arguments."""
    preset: dict[str, object] = {}
    while isinstance(target, functools.partial):
        # As in a call, the outer partial's arguments win over those of the one inside.
        names = [parameter.name for parameter in _parameters(target.func)]
        preset = dict(zip(names, target.args, strict=False)) | target.keywords | preset
        target = target.func
    return target, preset


def options_of(target: object) -> list[Option]:
    """The arguments of a class or function; where a class passes the rest on to its base, those of the base too."""
    found: dict[str, Option] = {}
    for function, doc in _constructors(target):
        entries = documented(doc)
        parameters = _parameters(function)
        for parameter in parameters:
            found.setdefault(parameter.name, _option(parameter, entries))
        if all(parameter.kind is not _CATCH_ALL for parameter in parameters):
            break
    passed_on = [option for option in found.values() if option.name.startswith("**")]
    # What a base passes on in its turn has been listed by name.
    return [option for option in found.values() if option not in passed_on] + passed_on[:1]


def documented(doc: str | None) -> dict[str, str]:
    """The entries of a docstring's `Args:`, by name, each on one line."""
    lines = inspect.cleandoc(doc or "").splitlines()
    start = next((number for number, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    entries: dict[str, str] = {}
    name, indent = "", None
    for line in lines[start + 1 :]:
        if line and not line[0].isspace():
            break
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        # An entry begins at the depth of the first; a deeper line goes on with it.
        match = _ENTRY.match(line.strip()) if depth == indent else None
        if match:
            name = match["name"].lstrip("*")
            entries[name] = match["text"]
        elif name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


def _constructors(target: object) -> Iterator[tuple[object, str | None]]:
    if not isinstance(target, type):
        yield target, inspect.getdoc(target)
        return
    for base in target.__mro__[:-1]:
        if "__init__" in vars(base):
            constructor = vars(base)["__init__"]
            yield constructor, constructor.__doc__ or base.__doc__


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    # What may be given without a name is given by its name too.
    return [parameter for parameter in parameters if parameter.name != "self" and parameter.kind is not _UNNAMED]


def _option(parameter: inspect.Parameter, entries: dict[str, str]) -> Option:
    stars = "**" if parameter.kind is _CATCH_ALL else ""
    annotation = "" if parameter.annotation is parameter.empty else inspect.formatannotation(parameter.annotation)
    default = None if parameter.default is parameter.empty else _shown(parameter.default)
    return Option(stars + parameter.name, annotation.strip("'\""), default, entries.get(parameter.name, ""))


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) or inspect.isroutine(value) else repr(value)
