"""Turns the name that a user wrote into one offer, or into the error that says why there is
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.errors import ConfigurationError
from core.registry import refusals
from core.registry.names import split_name
from core.registry.offers import Offer, Status, has_right

if TYPE_CHECKING:
    from core.registry.manager import PluginManager


def choose(kind: str, name: str, manager: PluginManager) -> Offer:
    """The one offer that `name` stands for.

    Args:
        kind: the kind of plugin.
        name: an alias, or `"provider:alias"`.
        manager: knows all offers.

    Raises:
        UnknownAliasError: no provider offers it.
        AliasConflictError: several do, or the alias belongs to another provider.
        BlockedPluginError: the environment keeps it out.
        IncompatiblePluginError: it was made for another release of core.
        PluginLoadError: its metadata doesn't say what to import.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"A {kind} is chosen by its name, a str. Got {name!r}.")
    provider, alias = split_name(name)
    offered = list(manager.offers(kind, alias))
    owned = [offer for offer in offered if has_right(offer.spec)]
    if provider is not None:
        # Core's own aliases are nobody else's, but a qualified name may mean any provider.
        owned = offered = [offer for offer in offered if offer.spec.provider == provider]
    if not offered:
        raise refusals.unknown(kind, name, manager)
    if not owned:
        raise refusals.reserved(offered)
    return _usable(_only(owned))


def _only(offers: list[Offer]) -> Offer:
    let_in = [offer for offer in offers if offer.status is not Status.BLOCKED]
    if not let_in:
        raise refusals.blocked(offers)
    if len(let_in) > 1:
        raise refusals.conflict(let_in)
    return let_in[0]


def _usable(offer: Offer) -> Offer:
    if offer.status is Status.INCOMPATIBLE:
        raise refusals.incompatible(offer)
    if offer.status is Status.BROKEN:
        raise refusals.not_loaded(offer, offer.detail)
    return offer
