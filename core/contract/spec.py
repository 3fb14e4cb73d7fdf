"""Specs: what a provider offers, as plain text. Nothing is imported to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from core.text.printable import printable

Fingerprint: TypeAlias = tuple[tuple[str, str, str, str], ...]
"""(kind, alias, provider, version) of every choice of a run, which its ranks compare."""


def normalize_alias(alias: str) -> str:
    """Fold an alias to its one written form: lower case, `_` for `-`. `"DDP-Spawn"` becomes
    `"ddp_spawn"`.
    """
    return alias.strip().casefold().replace("-", "_")


@dataclass(frozen=True, slots=True)
class Spec:
    """One alias of one provider. Picklable, so that ranks can compare and report it. Its text is
    made printable.

    Attributes:
        kind: name of its kind, a key of `core.contract.KINDS`.
        alias: the normalized short name that a user writes.
        target: `"module:attribute"` of a class, or of a factory that returns an instance. For an
            object that was registered in the running process it says where the object was defined,
            and the registry holds the object.
        provider: name of the distribution that offers it, such as `"core-ddp"`.
        summary: one line for listings; may be empty.
    """

    kind: str
    alias: str
    target: str
    provider: str
    summary: str = ""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if isinstance(value := getattr(self, name), str) and not value.isprintable():
                object.__setattr__(self, name, printable(value))

    @property
    def qualified_name(self) -> str:
        """`"provider:alias"`, the form that chooses among several providers of one alias."""
        return f"{self.provider}:{self.alias}"
