"""All offers and problems as rows for the command line: also what can't be used, with the
reason.
"""

from __future__ import annotations

from typing import NamedTuple

from core.contract.kinds import KINDS
from core.registry.discovery import BY_NAME_ONLY, Problem, Provider
from core.registry.manager import PluginManager, plugin_manager
from core.registry.offers import Offer, Status


class Row(NamedTuple):
    """One alias, or one problem.

    Attributes:
        kind: name of the kind; `"event hooks"`, `"prelude"` and `"export"` for the groups
            `core.hooks`, `core.preludes` and `core.exports`; empty for a problem.
        alias: empty for a problem.
        target: `"module:attribute"`; empty for a problem.
        provider: name of the distribution; a path where there is no name.
        version: of the provider.
        status: whether it can be used.
        detail: why not.
        summary: one line of description.
        location: the folder with the provider's metadata, where there is one.
    """

    kind: str
    alias: str
    target: str
    provider: str
    version: str
    status: Status
    detail: str = ""
    summary: str = ""
    location: str = ""


def listing(kind: str | None = None, *, manager: PluginManager | None = None) -> list[Row]:
    """All offers, then all problems. Nothing is imported.

    Args:
        kind: a key of `core.contract.KINDS`, `"event hooks"`, `"prelude"` or `"export"`; by default
            all kinds.
        manager: knows them; by default the manager of this process.
    """
    manager = manager or plugin_manager()
    kinds = [kind] if kind is not None else [*KINDS, *BY_NAME_ONLY]
    offers = [offer for name in kinds for offer in manager.offers(name)]
    providers = manager.providers
    return [_offer_row(offer, providers.get(offer.spec.provider)) for offer in offers] + [
        _problem_row(problem) for problem in manager.problems
    ]


def _offer_row(offer: Offer, provider: Provider | None) -> Row:
    spec = offer.spec
    return Row(
        spec.kind,
        spec.alias,
        spec.target,
        spec.provider,
        offer.version,
        offer.status,
        offer.detail,
        offer.summary,
        provider.location if provider else "",
    )


def _problem_row(problem: Problem) -> Row:
    status = Status.SHADOWED if problem.shadowed else Status.BROKEN
    return Row("", "", "", problem.source, "", status, problem.detail, location=problem.location)
