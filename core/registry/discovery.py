"""Finds the installed distributions that offer something to core, in one guarded pass over their
metadata.

Nothing is imported. The plain way, `importlib.metadata.entry_points()`, raises for all of them when
one file of any installed package is malformed. Here each distribution is read on its own; one with
a bad file becomes a `Problem`, and the others stand.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from core._version import DISTRIBUTION, TRAINING
from core.contract.kinds import EXPORTS_GROUP, HOOKS_GROUP, KINDS, PRELUDES_GROUP
from core.contract.spec import Spec, normalize_alias
from core.registry.metadata import (
    MAX_BYTES,
    about_core,
    clean_target,
    parse_entry_points,
    parse_headers,
    relevant_distributions,
)
from core.registry.names import fit_distribution, fit_version, normalize_distribution, unfit_alias
from core.text.plain_file import read_file
from core.text.printable import printable

if TYPE_CHECKING:
    from importlib_metadata import Distribution
    from packaging.version import Version

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
    """A distribution that offers something. Its texts are always printable, even if its metadata
    aren't.

    Attributes:
        name: normalized as PEP 503 says, such as `"core-acme"`.
        version: as its metadata says.
        specs: what it offers, in the order in which it says so.
        by_name: its modules with event hooks, preludes and exports, loaded only when a user names
            them.
        requires: its `Requires-Dist` lines about core.
        location: the folder that holds its metadata.
        summary: its one-line description.
    """

    name: str
    version: str
    specs: tuple[Spec, ...] = ()
    by_name: tuple[Spec, ...] = ()
    requires: tuple[str, ...] = ()
    location: str = ""
    summary: str = ""


class Problem(NamedTuple):
    """Something that was left out, in printable texts.

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
    problems: list[Problem] = []
    copies: dict[str, list[Provider]] = {}
    for distribution in relevant_distributions(_distributions(problems, refresh=refresh)):
        # `_path` is where every version of importlib_metadata keeps the folder; it has no public
        # way to it.
        path = str(getattr(distribution, "_path", distribution)).rstrip("/\\")
        location, folder = map(printable, os.path.split(path))
        name, _, version = folder.rpartition(".")[0].partition("-")
        found = Provider(normalize_distribution(name), version, location=location)
        try:
            found, details = _read(distribution, found, path)
        except Exception as cause:
            details = [
                f"{path} can't be read: {describe(cause)}. Install the package again, or delete "
                "that folder"
            ]
        problems += [
            Problem(found.name or printable(path), printable(detail), location)
            for detail in details
        ]
        copies.setdefault(found.name, []).append(found)
    effective = [_effective(same, problems) for same in copies.values()]
    providers = [
        provider
        for provider in effective
        if _offers(provider) and provider.name not in (DISTRIBUTION, TRAINING)
    ]
    return Discovery(tuple(sorted(providers, key=lambda provider: provider.name)), tuple(problems))


def _distributions(problems: list[Problem], *, refresh: bool) -> list[Distribution]:
    import importlib_metadata

    if refresh:
        import importlib

        importlib.invalidate_caches()
        importlib_metadata.MetadataPathFinder.invalidate_caches()
    try:
        return list(importlib_metadata.distributions())
    except Exception as cause:
        problems.append(
            Problem("sys.meta_path", f"a finder of distributions raised {describe(cause)}")
        )
        # Without the finder that raised: the one of the standard paths alone.
        return list(importlib_metadata.MetadataPathFinder.find_distributions())


def _read(distribution: Distribution, found: Provider, path: str) -> tuple[Provider, list[str]]:
    """Read what a distribution offers and what is wrong with it; METADATA only of one that offers
    something.
    """
    entries = parse_entry_points(_text(distribution, path, "entry_points.txt") or "")
    groups = {entry.group for entry in entries}
    if groups.isdisjoint(KIND_OF_GROUP):
        return found, []
    text = _text(distribution, path, "METADATA")
    headers = parse_headers(text or _text(distribution, path, "PKG-INFO") or "")
    name, version, summary = (
        headers.get(header, [""])[0] for header in ("name", "version", "summary")
    )
    # pip renames the folder to ~name while it uninstalls, and leaves it behind when it is killed.
    if found.name[:1] == "~" or not (fit_distribution(name) and fit_version(version)):
        raise ValueError(
            f"no package has the folder {os.path.basename(path)!a}, Name {name!a} and Version "
            f"{version!a}"
        )
    details = []
    specs: list[Spec] = []
    for entry in entries:
        if entry.group not in KIND_OF_GROUP:
            continue
        if reason := unfit_alias(entry.name):
            details.append(f"the alias {entry.name!r} in {entry.group} is left out: {reason}")
            continue
        kind, alias = KIND_OF_GROUP[entry.group], normalize_alias(entry.name)
        specs.append(Spec(kind, alias, clean_target(entry.value), normalize_distribution(name)))
    requires = headers.get("requires-dist") if text else distribution.requires
    return Provider(
        normalize_distribution(name),
        version,
        tuple([spec for spec in specs if spec.kind not in BY_NAME_ONLY]),
        tuple([spec for spec in specs if spec.kind in BY_NAME_ONLY]),
        about_core(requires or ()),
        found.location,
        printable(summary),
    ), details


def _text(distribution: Distribution, path: str, name: str) -> str | None:
    """Content of a metadata file, or None."""
    if not os.path.exists(path):  # such as an archive
        return distribution.read_text(name)
    try:
        return read_file(f"{path}{os.sep}{name}", MAX_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _effective(copies: list[Provider], problems: list[Problem]) -> Provider:
    """The copy whose code Python imports: the first on `sys.path`. The others are reported."""
    if len(copies) == 1:
        return copies[0]
    # Two in one folder come in the order of the directory, which means nothing.
    beside = [copy for copy in copies if copy.location == copies[0].location]
    first = max(beside, key=lambda copy: _order(copy.version))
    for copy in copies:
        if (_offers(copy) or _offers(first)) and _place(copy) != _place(first):
            detail = (
                f"{copy.version} in {copy.location} is hidden by {first.version} in "
                f"{first.location}"
            )
            problems.append(
                Problem(copy.name, f"{detail}; uninstall one of them", copy.location, shadowed=True)
            )
    return first


def _offers(provider: Provider) -> bool:
    return bool(provider.specs or provider.by_name)


def _place(copy: Provider) -> tuple[str, str]:
    """The same for two that are one: `lib64` is often a link to `lib`, and a folder can stand on
    `sys.path` twice.
    """
    return os.path.realpath(copy.location), copy.version


def _order(version: str) -> Version:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")
