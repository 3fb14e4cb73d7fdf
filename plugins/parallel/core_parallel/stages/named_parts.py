"""The parts of a model by the names of its modules, for models that don't say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from core import ConfigurationError, did_you_mean
from core_parallel.modules.plans import as_expression

Part = Callable[..., Any]
Found = tuple[str, nn.Module, list[nn.Module]]
"""A module's name, the module, and its parts in the order in which they are applied."""


def parse(given: Any) -> tuple[str | Part, ...] | None:
    """The names, and the functions between them; None if the model is to say them.

    Raises:
        ConfigurationError: it is no list of these.
    """
    if given is None:
        return None
    parts = list(given) if isinstance(given, list | tuple) else []
    others = [one for one in parts if not isinstance(one, str)]
    are_functions = all(callable(one) and not isinstance(one, nn.Module) for one in others)
    if len(others) == len(parts) or not are_functions:
        raise ConfigurationError(
            f"parts={given!r:.80}: expected a list of module names in the order in which they are "
            "applied, such as ['embed', 'blocks.*', 'head']."
        )
    return tuple(parts)


def find(user: nn.Module, given: Sequence[str | Part]) -> Found:
    """The smallest module that is called with all parts in it, by name, and the parts.

    Args:
        user: the user's module.
        given: names in it, in the order in which the parts are applied; `*` stands for one part of
            a name, and then modules follow each other as they were added. What functions between
            them do, forward does.

    Raises:
        ConfigurationError: a name fits no module.
    """
    modules = dict(user.named_modules(remove_duplicate=False))
    patterns = [one for one in given if isinstance(one, str)]
    names = [name for one in patterns for name in _matching(type(user).__name__, modules, one)]
    owner = innermost(modules, names)
    return owner, modules[owner], [modules[name] for name in names]


def of_one(user: nn.Module, given: Sequence[str | Part]) -> str:
    """The name of one model, whose parts are those that it says or that are planned; none if parts
    are named.
    """
    found = [name for name, one in user.named_modules() if [name] == [*given] and is_called(one)]
    return "".join(found)


def is_called(module: nn.Module) -> bool:
    """True if the module has a forward."""
    return type(module).forward is not nn.Module.forward


def _matching(title: str, modules: dict[str, nn.Module], pattern: str) -> list[str]:
    expression = as_expression(pattern)
    found = [name for name in modules if name and expression.fullmatch(name)]
    if not found:
        own = [name for name in modules if name]
        choices = {*own, *(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in own)}
        near = did_you_mean(pattern, choices, count=2)
        near = near or f" It has {', '.join(map(repr, own[:8]))}."
        raise ConfigurationError(
            f"parts names {pattern!r}, and {title} has no such module.{near} '*' stands for one "
            "part of a name, as in 'blocks.*'."
        )
    return found


def innermost(modules: Mapping[str, nn.Module], names: Sequence[str]) -> str:
    """The name of the innermost module that has them all and is called; else of the outermost."""
    owner = names[0].rpartition(".")[0]
    while owner:
        has_all = all(name.startswith(f"{owner}.") for name in names)
        if has_all and is_called(modules[owner]):
            return owner
        owner = owner.rpartition(".")[0]
    return owner
