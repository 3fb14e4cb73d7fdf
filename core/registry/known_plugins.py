"""The plugins of this project, installed or not: an error can say what to install. Nothing is
chosen by it.

`plugins/known_plugins.py` writes the file beside this one.
"""

from __future__ import annotations

import functools
import json
from importlib import resources


@functools.cache
def known_plugins() -> dict[str, dict[str, dict[str, str]]]:
    """Targets by distribution, kind and alias."""
    text = (
        resources.files("core.registry").joinpath("known_plugins.json").read_text(encoding="utf-8")
    )
    plugins: dict[str, dict[str, dict[str, str]]] = json.loads(text)
    return plugins


def known_aliases(kind: str) -> dict[str, str]:
    """Distribution by alias, of one kind."""
    return {alias: name for name, kinds in known_plugins().items() for alias in kinds.get(kind, ())}


def known_classes(kind: str) -> dict[str, str]:
    """Distribution by the name of a class, of one kind."""
    targets = (
        (name, target)
        for name, kinds in known_plugins().items()
        for target in kinds.get(kind, {}).values()
    )
    return {target.rpartition(":")[2]: name for name, target in targets}


def pip_install(distribution: str, option: str = "") -> str:
    """The command, and where one of ours comes from."""
    command = " ".join(filter(None, ("pip install", option, distribution)))
    source = ""
    if distribution in known_plugins():
        source = " (from this project's wheels or checkout, not from an index: README, Install)"
    return f"`{command}`{source}"


def missing(distribution: str) -> str:
    """A sentence about a distribution that isn't installed."""
    return f"{distribution} is not installed: {pip_install(distribution)}."
