"""The kinds of plugin as the command line names them."""

from __future__ import annotations

from typing import Any

from core.contract.errors import UnknownAliasError
from core.contract.kinds import KINDS
from core.registry import Registry
from core.registry.names import split_name
from core.text.spelling import near_names

KINDS_BY_OPTION = {name.replace(" ", "-"): name for name in KINDS}
"""Name of each kind by its form on the command line."""


def unknown_alias(alias: str) -> UnknownAliasError:
    """The error for an alias that no kind of plugin has, with what is near."""
    folded = split_name(alias)[1]
    everything = {offer.spec.alias for kind in KINDS for offer in Registry[Any](kind).offers()}
    near = near_names(folded, everything)
    advice = "`core list` shows what is installed."
    if near:
        advice = f"Did you mean {' or '.join(map(repr, near))}?"
    return UnknownAliasError(
        f"Nothing is called {alias!r}. {advice}", kind="plugin", alias=alias, near=near
    )
