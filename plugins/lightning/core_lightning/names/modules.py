"""Lightning's modules: the names of each, and where core or this package has them. `names.txt`
lists them.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

VERSION = "2.6.6"
"""The release of Lightning whose names and forms these are."""

_OWN = "core_lightning"
STAND_INS = f"{_OWN}.decisions.stand_ins"
"""The module of the names that can be imported, and not used."""

_FIRST = {
    "lightning.fabric.loggers": ".loggers._fabric_loggers",
    "lightning.fabric.utilities": ".fabric.throughput",
    "lightning.pytorch.cli": ".cli.cli_parser",
    "lightning.pytorch.utilities.model_summary": ".utilities.model_summary",
}
"""Modules of Lightning's, and those below, whose names are looked for in this home before the first
one in order.
"""


def _modules(root: str, tables: str) -> dict[str, dict[str, str]]:
    listed: dict[str, list[str]] = {}
    for line in tables.split("\n"):
        package, _, entries = line.partition(": ")
        for module, *words in map(str.split, filter(None, entries.split("; "))):
            names = (name for word in words for name in _IN.get(word, [word]))
            listed.setdefault(f"{root}.{package}.{module}".rstrip("."), []).extend(names)
    for module in list(listed):
        while (module := module.rpartition(".")[0]) != "lightning":
            listed.setdefault(module, ["*"])
    return {
        module: {name: _target(module, name) for name in _names(listed, module)}
        for module in listed
    }


def _names(listed: dict[str, list[str]], module: str) -> set[str]:
    own = {name for name in listed[module] if name != "*"}
    below = (set(names) for other, names in listed.items() if other.startswith(f"{module}."))
    return own.union(*below) - {"*"} if "*" in listed[module] else own


def _target(module: str, name: str) -> str:
    homes = [home for place, home in _FIRST.items() if f"{module}.".startswith(f"{place}.")]
    home, original = next((home, _IN[home][name]) for home in (*homes, *_IN) if name in _IN[home])
    return f"{_OWN if home.startswith('.') else ''}{home}:{original}"


_TEXT = Path(__file__).with_name("names.txt").read_text(encoding="utf-8")
_HOMES, _BOTH, _PYTORCH, _FABRIC = (
    section.partition("]\n")[2] for section in _TEXT.split("\n[")[1:]
)
_IN: dict[str, dict[str, str]] = {}
for _home, _, _words in (row.partition(": ") for row in _HOMES.strip().split("\n")):
    _pairs = (word.partition("=") for word in _words.split())
    _IN.setdefault(_home, {}).update({name: original or name for name, _, original in _pairs})
_MODULES = _modules("lightning.pytorch", _BOTH + _PYTORCH) | _modules(
    "lightning.fabric", _BOTH + _FABRIC
)
_ROOT = "Callback Fabric LightningDataModule LightningModule Trainer __version__ seed_everything"

MODULES = MappingProxyType(
    {"lightning": {name: _target("lightning", name) for name in _ROOT.split()}, **_MODULES}
)
"""For each module of Lightning's its names, each with `"module:attribute"` of what it is here."""
