"""Finds the installed distributions that offer something to core, in one guarded pass over their
metadata.

Nothing is imported. The plain way, `importlib.metadata.entry_points()`, raises for all of them when
one file of any installed package is malformed. Here each distribution is read on its own; one with
a bad file becomes a `Problem`, and the others stand.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from core._version import DISTRIBUTION, TRAINING
from core.contract.kinds import EXPORTS_GROUP, HOOKS_GROUP, KINDS, PRELUDES_GROUP
from core.contract.spec import Spec, normalize_alias
from core.registry.metadata import (
    about_core,
    clean_target,
    folder_of,
    parse_entry_points,
    parse_headers,
    relevant_distributions,
)
from core.registry.names import normalize_distribution, unfit_alias
from core.text.printable import printable

if TYPE_CHECKING:
    from importlib_metadata import Distribution

HOOKS = "event hooks"
"""Stands for the kind in the specs of modules with event hooks (group `core.hooks`)."""
PRELUDES = "prelude"
"""Stands for the kind in the specs of preludes (group `core.preludes`)."""
EXPORTS = "export"
"""Stands for the kind in the specs of names that are added to core's (group `core.exports`)."""
BY_NAME_ONLY = (HOOKS, PRELUDES, EXPORTS)
"""The kinds that no registry has, since nothing of them is ever chosen but by a user who names
it.
"""

KIND_OF_GROUP = {
    **{kind.group: kind.name for kind in KINDS.values()},
    HOOKS_GROUP: HOOKS,
    PRELUDES_GROUP: PRELUDES,
    EXPORTS_GROUP: EXPORTS,
}
"""The kind of each entry-point group."""


class Provider(NamedTuple):
    """A distribution that offers something.

    Attributes:
        name: normalized as PEP 503 says, such as `"core-acme"`.
        version: as its metadata says.
        specs: what it offers, in the order in which it says so: also event hooks, preludes and
            exports, which are loaded only when a user names them.
        requires: its `Requires-Dist` lines about core.
        location: the folder that holds its metadata.
        summary: its one-line description.
    """

    name: str
    version: str
    specs: tuple[Spec, ...] = ()
    requires: tuple[str, ...] = ()
    location: str = ""
    summary: str = ""


class Problem(NamedTuple):
    """Something that was left out.

    Attributes:
        source: the distribution or plugin; a path where there is no name.
        detail: what is wrong with it, and where that calls for it, what to do.
        location: the folder that holds its metadata, where known.
        shadowed: whether it is a good copy that another one hides, and not a damaged one.
    """

    source: str
    detail: str
    location: str = ""
    shadowed: bool = False


class Discovery(NamedTuple):
    """The findings of one pass."""

    providers: tuple[Provider, ...]
    problems: tuple[Problem, ...]


_lock = threading.Lock()
_cached: Discovery | None = None


def discover(*, refresh: bool = False) -> Discovery:
    """All that installed distributions offer, read once in a process.

    Args:
        refresh: read them again, for packages that were installed since.
    """
    global _cached
    with _lock:
        if _cached is None or refresh:
            _cached = _scan(refresh=refresh)
        return _cached


def describe(cause: BaseException) -> str:
    """Type and text of an exception on one line, printable."""
    return printable(" ".join(f"{type(cause).__name__}: {cause}".split()).removesuffix(":"))


def _scan(*, refresh: bool) -> Discovery:
    """First every metadata folder is read, then the copies of one distribution are told apart."""
    import importlib_metadata

    if refresh:
        importlib.invalidate_caches()
        importlib_metadata.MetadataPathFinder.invalidate_caches()
    problems: list[Problem] = []
    copies: dict[str, list[Provider]] = {}
    for distribution in relevant_distributions(list(importlib_metadata.distributions())):
        path = folder_of(distribution)
        location, folder = os.path.split(path)
        name, _, version = folder.rpartition(".")[0].partition("-")
        found = Provider(normalize_distribution(name), version, location=location)
        try:
            found, details = _read(distribution, found)
        except Exception as cause:
            details = [
                f"{path} can't be read: {describe(cause)}. Install the package again, or delete "
                "that folder"
            ]
        problems += [Problem(found.name or path, detail, location) for detail in details]
        copies.setdefault(found.name, []).append(found)
    providers = []
    for first, *others in copies.values():
        # Python imports the code of the first copy on `sys.path`.
        for copy in others:
            if (copy.specs or first.specs) and _place(copy) != _place(first):
                detail = (
                    f"{copy.version} in {copy.location} is hidden by {first.version} in "
                    f"{first.location}; uninstall one of them"
                )
                problems.append(Problem(copy.name, detail, copy.location, shadowed=True))
        if first.specs and first.name not in (DISTRIBUTION, TRAINING):
            providers.append(first)
    return Discovery(tuple(sorted(providers, key=lambda provider: provider.name)), tuple(problems))


def _read(distribution: Distribution, found: Provider) -> tuple[Provider, list[str]]:
    """Read what a distribution offers and what is wrong with it; METADATA only of one that offers
    something.
    """
    entries = parse_entry_points(distribution.read_text("entry_points.txt") or "")
    offered = [entry for entry in entries if entry.group in KIND_OF_GROUP]
    if not offered:
        return found, []
    text = distribution.read_text("METADATA")
    headers = parse_headers(text or distribution.read_text("PKG-INFO") or "")
    name, version, summary = (
        headers.get(header, [""])[0] for header in ("name", "version", "summary")
    )
    if not (name and version):
        raise ValueError(f"it has Name {name!r} and Version {version!r}")
    name = normalize_distribution(name)
    details = []
    specs: list[Spec] = []
    for entry in offered:
        reason = unfit_alias(entry.name)
        if reason:
            details.append(f"the alias {entry.name!r} in {entry.group} is left out: {reason}")
            continue
        kind, alias = KIND_OF_GROUP[entry.group], normalize_alias(entry.name)
        specs.append(Spec(kind, alias, clean_target(entry.value), name))
    requires = headers.get("requires-dist")
    if not text:
        requires = distribution.requires
    return Provider(
        name, version, tuple(specs), about_core(requires or ()), found.location, summary
    ), details


def _place(copy: Provider) -> tuple[str, str]:
    """The same for two that are one: `lib64` is often a link to `lib`, and a folder can stand on
    `sys.path` twice.
    """
    return os.path.realpath(copy.location), copy.version
