"""Options of a strategy's constructor: shown where it hands them on, refused where no constructor
names them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

from core.contract import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

F = TypeVar("F", bound="Callable[..., None]")

_CATCH_ALL = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def check_options(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse options that aren't known. `ParallelStrategy` does so for every subclass, with
    `known_options`.

    Args:
        owner: name of the strategy's class, for the message.
        given: names of the options that the user gave.
        known: names of those that there are.

    Raises:
        ConfigurationError: with a near miss, and all that are known.
    """
    for name in sorted(set(given).difference(known)):
        raise ConfigurationError(
            f"{owner} has no option {name!r}.{did_you_mean(name, known)} "
            f"Its options: {', '.join(sorted(known))}."
        )


def known_options(strategy: type) -> set[str]:
    """Names of the options of a strategy's class: those in the signatures of its constructor and
    its bases'.
    """
    known = set()
    for owner in strategy.__mro__[:-1]:
        if "__init__" in vars(owner):
            for one in inspect.signature(vars(owner)["__init__"]).parameters.values():
                if one.kind not in _CATCH_ALL:
                    known.add(one.name)
    return known - {"self"}


def with_options_of(
    *sources: Callable[..., object], leave_out: Collection[str] = (), closed: bool = False
) -> Callable[[F], F]:
    """Decorator of a constructor that takes `**options`: adds those of its sources to its signature
    and docstring.

    `core describe`, `help` and `known_options` find them there. The constructor is called as it
    was.

    Args:
        sources: what the options are handed to: functions, and classes such as a dataclass, whose
            `Attributes:` become a part of the docstring.
        leave_out: parameters of the sources that are no options.
        closed: there are no others: `**options` goes from the signature, and with it those of the
            class's bases.
    """

    def add(constructor: F) -> F:
        own = inspect.signature(constructor)
        parameters = dict(own.parameters)
        _, rest = parameters.popitem()
        for source in sources:
            for name, one in inspect.signature(source).parameters.items():
                if name not in {*own.parameters, *leave_out, "self"} and one.kind not in _CATCH_ALL:
                    parameters[name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if not closed:
            parameters[rest.name] = rest
        constructor.__signature__ = own.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
        for source in sources:
            _, found_any, described = (inspect.getdoc(source) or "").partition("\nAttributes:\n")
            if found_any:
                constructor.__doc__ = f"{constructor.__doc__}\n\nOptions:\n{described}"
        return constructor

    return add
