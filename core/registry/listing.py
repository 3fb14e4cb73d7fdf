"""All offers and problems as rows for the command line: also what can't be used, with the
reason.
"""

from __future__ import annotations

from typing import NamedTuple

from core.contract.kinds import KINDS
from core.registry.discovery import BY_NAME_ONLY
from core.registry.manager import PluginManager, plugin_manager
from core.registry.offers import Status


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
    kinds = [*KINDS, *BY_NAME_ONLY]
    if kind is not None:
        kinds = [kind]
    locations = {provider.name: provider.location for provider in manager.providers.values()}
    rows = []
    for offer in (offer for name in kinds for offer in manager.offers(name)):
        spec = offer.spec
        what = Row(spec.kind, spec.alias, spec.target, spec.provider, *offer[1:])
        rows.append(what._replace(location=locations.get(spec.provider, "")))
    for source, detail, location, is_shadowed in manager.problems:
        status = Status.BROKEN
        if is_shadowed:
            status = Status.SHADOWED
        rows.append(Row("", "", "", source, "", status, detail, location=location))
    return rows
