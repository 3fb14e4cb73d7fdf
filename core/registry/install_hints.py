"""The commands that install a package, for messages.

The packages of this project come from its own wheels: on a package index, their names may belong to others.
"""

from __future__ import annotations

from core.registry.known_plugins import known_plugins


def pip_install(distribution: str, option: str = "") -> str:
    """The command, and where one of ours comes from."""
    command = " ".join(filter(None, ("pip install", option, distribution)))
    source = " (from this project's wheels or checkout, not from an index: README, Install)"
    return f"`{command}`{source if distribution in known_plugins() else ''}"


def missing(distribution: str) -> str:
    """A sentence about a distribution that isn't installed."""
    return f"{distribution} is not installed: {pip_install(distribution)}."
