"""`core describe ALIAS`: what an alias stands for, and the options that it takes."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any

import click

from core.cli.kinds import KINDS_BY_OPTION, unknown_alias
from core.cli.layout import paragraph, say_all, shown, styled, with_article
from core.contract.errors import ConfigurationError
from core.contract.kinds import KINDS
from core.registry import COMMAND_REGISTRY, Registry, known_aliases
from core.registry.names import split_name
from core.text import first_paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Parameters):\s*\n( .*\n|\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}\*{0,2}(?P<name>\w+)[^:\n]*:(?P<text>.*(\n {5}.*)*)", re.MULTILINE)
_CATCH_ALL = inspect.Parameter.VAR_KEYWORD
_UNNAMED = inspect.Parameter.VAR_POSITIONAL

_EXAMPLES = """\b
Examples:
  core describe ddp
  core describe 16-mixed
  core describe spawn --kind launcher
"""


@click.command(short_help="Show what an alias stands for, and its options.", epilog=_EXAMPLES)
@click.argument("alias")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS_BY_OPTION)),
    help="Where several kinds of plugin have this alias.",
)
def describe(alias: str, kind: str | None) -> None:
    """Show what ALIAS stands for, and the options that it takes, with types, defaults and meaning.

    ALIAS may be qualified by its package, `core-acme:acme`. The package is imported.
    """
    name = KINDS_BY_OPTION.get(kind or "") or _kind_of(alias)
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
        forms = " or ".join(
            f"`core describe {alias} --kind {kind.replace(' ', '-')}`" for kind in kinds
        )
        raise ConfigurationError(f"{alias!r} is a {' and a '.join(kinds)}. Choose one: {forms}.")
    if kinds or known:
        return (kinds or known)[0]
    raise unknown_alias(alias)


def _description(registry: Registry[Any], name: str) -> Iterator[str]:
    offer = registry.offer(name)
    target, preset = look_into(registry.get(offer))
    yield shown(
        styled(offer.spec.alias, bold=True), f": {with_article(offer.spec.kind)} of {offer}"
    )
    yield from paragraph(offer.summary)
    yield ""
    whole = f"{target.__module__}.{target.__qualname__}"
    if preset:
        given = ", ".join(f"{option}={value!r}" for option, value in preset.items())
        whole = f"A preset of {whole}({given})"
    yield from paragraph(whole)
    yield from paragraph(first_paragraph(inspect.getdoc(target)), indent="    ")
    yield ""
    options = options_of(target)
    if not options:
        yield "It takes no options."
        return
    yield styled("Options", bold=True)
    for parameter, doc in options:
        text = _written(parameter)
        if parameter.name in preset:
            own = parameter.replace(default=preset[parameter.name])
            text = f"{_written(own)} (set by this alias)"
        yield from paragraph(text, indent="  ")
        yield from paragraph(doc, indent="      ")


def look_into(target: Any) -> tuple[Any, dict[str, object]]:
    """The callable behind a class, a `functools.partial` or a function, and its preset
    arguments.
    """
    preset: dict[str, object] = {}
    while isinstance(target, functools.partial):
        # As in a call, the outer partial's arguments win over those of the one inside.
        names = [parameter.name for parameter in _parameters(target.func)]
        preset = dict(zip(names, target.args, strict=False)) | target.keywords | preset
        target = target.func
    return target, preset


def options_of(target: object) -> list[tuple[inspect.Parameter, str]]:
    """The arguments of a class or function, each with its entry in the docstring.

    Where a class passes the rest on to its base, those of the base too.
    """
    found: dict[str, tuple[inspect.Parameter, str]] = {}
    for function, doc in _constructors(target):
        entries = documented(doc)
        parameters = _parameters(function)
        for parameter in parameters:
            # What is passed on comes once, under whatever name: a base's own arguments are in the
            # list.
            name = "**" if parameter.kind is _CATCH_ALL else parameter.name
            found.setdefault(name, (parameter, entries.get(parameter.name, "")))
        if all(parameter.kind is not _CATCH_ALL for parameter in parameters):
            break
    return sorted(found.values(), key=lambda option: option[0].kind is _CATCH_ALL)


def documented(doc: str | None) -> dict[str, str]:
    """The entries of a docstring's `Args:`, by name, each on one line."""
    section = _SECTION.search(inspect.cleandoc(doc or "") + "\n")
    if section is None:
        return {}
    entries = _ENTRY.finditer(section.group())
    return {entry["name"]: " ".join(entry["text"].split()) for entry in entries}


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
    return [
        parameter
        for parameter in parameters
        if parameter.name != "self" and parameter.kind is not _UNNAMED
    ]


def _written(parameter: inspect.Parameter) -> str:
    """A parameter as it stands in its function, with what is a class or function by its name."""
    if parameter.kind is _CATCH_ALL:
        return f"**{parameter.name}"
    text = parameter.name
    default = parameter.default
    if parameter.annotation is not parameter.empty:
        text += ": " + inspect.formatannotation(parameter.annotation).strip("'\"")
    if default is parameter.empty:
        return text
    if isinstance(default, type) or inspect.isroutine(default):
        return f"{text} = {default.__name__}"
    return f"{text} = {default!r}"
