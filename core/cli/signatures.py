"""The options of a class, read from its signatures and the `Args:` of its docstrings."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECTION = re.compile(r"(Args|Arguments|Attributes|Parameters):\s*$")
_ENTRY = re.compile(r"(?P<name>\*{0,2}\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_CATCH_ALL = inspect.Parameter.VAR_KEYWORD
_UNNAMED = inspect.Parameter.VAR_POSITIONAL


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


@dataclass(frozen=True, slots=True)
class Factory:
    """The class or function that an alias stands for.

    Attributes:
        made: the class, or None if that is unknown without a call.
        preset: options that the alias sets, by name.
        function: the function, if it isn't a class.
    """

    made: type | None
    preset: dict[str, Any]
    function: Callable[..., Any] | None = None


def look_into(target: Any) -> Factory:
    """The callable behind a class, a `functools.partial` or a function, and its preset arguments."""
    preset: dict[str, Any] = {}
    while isinstance(target, functools.partial):
        # As in a call, the outer partial's arguments win over those of the one inside.
        preset = dict(zip(_names(target.func), target.args, strict=False)) | target.keywords | preset
        target = target.func
    return Factory(target, preset) if isinstance(target, type) else Factory(None, preset, target)


def options_of(target: Any) -> list[Option]:
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


def _names(function: Any) -> list[str]:
    return [parameter.name for parameter in _parameters(function)]


def _constructors(target: Any) -> Iterator[tuple[Any, str | None]]:
    if not isinstance(target, type):
        yield target, inspect.getdoc(target)
        return
    for base in target.__mro__[:-1]:
        if "__init__" in vars(base):
            constructor = vars(base)["__init__"]
            yield constructor, f"{base.__doc__ or ''}" if not constructor.__doc__ else constructor.__doc__


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
