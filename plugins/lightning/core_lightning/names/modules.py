"""Lightning's modules: the names of each, and where core or this package has them. `names.txt`
lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

VERSION = "2.6.6"
"""The release of Lightning whose names and forms these are."""

ROOTS = ("lightning", "lightning_fabric", "pytorch_lightning")
_SHORT = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
"""Roots that are another name of a part of the first one."""

STAND_INS = "core_lightning.decisions.stand_ins"
"""The module of the names that can be imported, and not used."""

_TARGETS, _MODULES = (
    Path(__file__).with_name("names.txt").read_text(encoding="utf-8").split("\n[modules]\n")
)


def _rows(text: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The word before each colon, and the names after it, each parted at its `=`."""
    for row in text.strip().split("\n"):
        place, _, names = row.partition(":")
        yield place, [name.partition("=") for name in names.split()]


def _read() -> dict[str, dict[str, str]]:
    targets: dict[str, str] = {}
    for home, names in _rows(_TARGETS.partition("[targets]\n")[2]):
        for name, _, original in names:
            targets[name] = f"{home}:{original or name}"
    modules: dict[str, dict[str, str]] = {}
    for module, names in _rows(_MODULES):
        found = modules.setdefault(module, {})
        for name, _, target in names:
            found[name] = target or targets[name]
    return modules


MODULES = MappingProxyType(_read())
"""For each module of Lightning's its names, each with `"module:attribute"` of what it is here."""


def is_lightnings(name: str) -> bool:
    """True if a module, or what is in it, is below one of Lightning's roots."""
    return name.partition(".")[0] in ROOTS


def long_name(name: str) -> str:
    """The name with its root in full: `lightning.pytorch.cli` of `pytorch_lightning.cli`."""
    root, dot, rest = name.partition(".")
    return f"{_SHORT.get(root, root)}{dot}{rest}"
