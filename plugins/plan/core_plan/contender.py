"""A strategy with options, as a user writes it on a command line."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core.registry import STRATEGY_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core import Strategy


@dataclass(frozen=True)
class Contender:
    """One strategy among those that are planned for, or compared.

    Attributes:
        alias: a registered name.
        options: of its constructor.
    """

    alias: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Contender:
        """The contender that `"fsdp"` or `"parallel:data=2,shard=2"` names.

        Raises:
            ConfigurationError: an option without a value.
        """
        alias, _, written = text.strip().partition(":")
        options = {}
        for part in filter(None, written.replace(":", ",").split(",")):
            name, equals, value = part.strip().partition("=")
            if not (name.isidentifier() and equals):
                raise ConfigurationError(
                    f"{text!r}: expected an option of {alias!r} and its value, as in "
                    f"{alias}:timeout=60; got {part!r}."
                )
            options[name] = _value(value)
        return cls(alias, options)

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.alias}:{options}" if options else self.alias

    def make(self) -> Strategy | str:
        """The argument `strategy` of a Trainer or Fabric."""
        return STRATEGY_REGISTRY.create(self.alias, **self.options) if self.options else self.alias


def parse_contenders(texts: Iterable[str]) -> list[Contender]:
    """The contenders of a list such as `"ddp,parallel:data=2,shard=2,fsdp"`; what has no name is an
    option.

    Raises:
        ConfigurationError: the same one twice, or an option without a value.
    """
    written: list[str] = []
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        if "=" in part and ":" not in part and written:
            written[-1] += f",{part}"
        else:
            written.append(part)
    contenders = [Contender.parse(text) for text in written]
    if twice := [str(each) for each in contenders if contenders.count(each) > 1]:
        raise ConfigurationError(f"{twice[0]} is named twice among the strategies. Name each once.")
    return contenders


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
