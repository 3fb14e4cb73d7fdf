"""Finds the installed distributions that offer something to core, in one guarded pass over their metadata.

Nothing is imported. The plain way, `importlib.metadata.entry_points()`, raises for all of them when one file of any
installed package is malformed. Here each distribution is read on its own; what can't be read becomes a `Problem`,
and the others stand.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract.kinds import EXPORTS_GROUP, HOOKS_GROUP, KINDS, PRELUDES_GROUP
from core.contract.spec import Spec, normalize_alias
from core.registry.known_plugins import pip_install
from core.registry.metadata import (
    MAX_BYTES,
    EntryPoint,
    about_core,
    clean_target,
    parse_entry_points,
    parse_headers,
    relevant_distributions,
)
from core.registry.names import fit_distribution, fit_version, normalize_distribution, unfit_alias
from core.text.plain_file import read_file
from core.text.printable import printable
from core.text.spelling import near_names

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS = "event hooks"
"""Stands for the kind in the specs of modules with event hooks (group `core.hooks`)."""
PRELUDES = "prelude"
"""Stands for the kind in the specs of preludes (group `core.preludes`)."""
EXPORTS = "export"
"""Stands for the kind in the specs of names that are added to core's (group `core.exports`)."""
BY_NAME_ONLY = (HOOKS, PRELUDES, EXPORTS)
"""The kinds that no registry has, since nothing of them is ever chosen but by a user who names it."""

KIND_OF_GROUP = {
    **{kind.group: kind.name for kind in KINDS.values()},
    HOOKS_GROUP: HOOKS,
    PRELUDES_GROUP: PRELUDES,
    EXPORTS_GROUP: EXPORTS,
}
"""The kind of each entry-point group."""


class Provider(NamedTuple):
    """A distribution that offers something. Its texts are always printable, even if its metadata aren't.

    Attributes:
        name: normalized as PEP 503 says, such as `"core-acme"`.
        version: as its metadata says.
        specs: what it offers, in the order in which it says so.
        by_name: its modules with event hooks, preludes and exports, loaded only when a user names them.
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
            _cached = _Scan(refresh=refresh).result()
        return _cached


def describe(cause: BaseException) -> str:
    """Type and text of an exception on one line, printable."""
    return printable(" ".join(f"{type(cause).__name__}: {cause}".split()).removesuffix(":"))


@dataclass(slots=True)
class _Copy:
    """One metadata folder of a distribution, and what it offers to core."""

    name: str
    version: str
    location: str
    path: Any = None
    entries: tuple[EntryPoint, ...] = ()
    requires: tuple[str, ...] = ()
    summary: str = ""


class _Scan:
    """One pass. First every metadata folder is read, then the copies of one distribution are told apart."""

    def __init__(self, *, refresh: bool) -> None:
        self.problems: list[Problem] = []
        self.copies: dict[str, list[_Copy]] = {}
        for distribution in relevant_distributions(self._distributions(refresh)):
            self._guarded_read(distribution)

    def result(self) -> Discovery:
        effective = [self._effective(copies) for copies in self.copies.values()]
        providers = [self._provider(copy) for copy in effective if copy.entries and copy.name != "core"]
        return Discovery(tuple(sorted(providers, key=lambda provider: provider.name)), tuple(self.problems))

    def _distributions(self, refresh: bool) -> list[Any]:
        import importlib_metadata

        if refresh:
            import importlib

            importlib.invalidate_caches()
            importlib_metadata.MetadataPathFinder.invalidate_caches()
        try:
            return list(importlib_metadata.distributions())
        except Exception as cause:
            self.problems.append(Problem("sys.meta_path", f"a finder of distributions raised {describe(cause)}"))
            # Without the finder that raised: the one of the standard paths alone.
            return list(importlib_metadata.MetadataPathFinder.find_distributions())

    def _guarded_read(self, distribution: Any) -> None:
        # `_path` is where every version of importlib_metadata keeps the folder; it has no public way to it.
        path = getattr(distribution, "_path", None)
        copy = _Copy("", "", "", path)
        try:
            self._identify(copy, distribution)
            self._read(copy, distribution)
        except Exception as cause:
            source = copy.name or str(path or distribution)
            self._report(copy, f"its metadata can't be read: {describe(cause)}. {_reinstall(source)}")
            copy.entries = ()
            if copy.name:
                self._keep(copy)

    def _identify(self, copy: _Copy, distribution: Any) -> None:
        if copy.path is None:
            copy.name, copy.version = normalize_distribution(distribution.name), distribution.version
            return
        # The folder's name has both, without opening a file; METADATA is read only of those that offer something.
        copy.location, folder = os.path.split(str(copy.path).rstrip("/\\"))
        name, _, version = folder.rpartition(".")[0].partition("-")
        copy.name, copy.version = normalize_distribution(name), version

    def _read(self, copy: _Copy, distribution: Any) -> None:
        text = _text(copy.path, distribution, "entry_points.txt")
        entries, bad_lines = parse_entry_points(text or "")
        copy.entries = tuple([entry for entry in entries if entry.group in KIND_OF_GROUP])
        # A misspelt group of ours is worth a word. Groups of other programs aren't ours to judge.
        strangers = {entry.group for entry in entries if entry.group.startswith("core.")} - KIND_OF_GROUP.keys()
        relevant = bool(copy.entries) or not text
        # pip renames a folder to ~name while it uninstalls, and leaves it behind when it is killed.
        if not copy.name.strip("~") or copy.name[0] in "~-":
            if relevant:
                self._report(copy, f"left over from an interrupted `pip uninstall`; delete the folder {copy.path}")
            return
        if not self._read_headers(copy, distribution):
            if relevant:
                self._report(copy, f"the folder {copy.path} has no METADATA; delete it, or install the package again")
            return
        if bad_lines:
            more = f", and {len(bad_lines) - 1} more lines are bad" if bad_lines[1:] else ""
            self._report(copy, f"{bad_lines[0]}{more}. {_reinstall(copy.name)}")
        for group in sorted(strangers):
            self._report_near_miss(copy, group)
        self._keep(copy)

    def _read_headers(self, copy: _Copy, distribution: Any) -> bool:
        """Complete `copy` if it offers something. Returns whether it has metadata at all."""
        if not copy.entries:
            return copy.path is None or _has_metadata(copy.path)
        text = _text(copy.path, distribution, "METADATA")
        legacy = None if text else _text(copy.path, distribution, "PKG-INFO")
        headers = parse_headers(text or legacy or "")
        if not headers:
            return False
        copy.version = _one(headers, "version", fit_version)
        copy.name = normalize_distribution(_one(headers, "name", fit_distribution))
        copy.summary = headers.get("summary", [""])[0]
        if legacy:
            _text(copy.path, distribution, "requires.txt")  # is read without a look at what it is
        requires = (distribution.requires if legacy else headers.get("requires-dist")) or ()
        copy.requires = about_core(requires)
        return True

    def _report_near_miss(self, copy: _Copy, group: str) -> None:
        """Report a group whose name is almost one of ours. Any other group belongs to another program."""
        for meant in near_names(group, KIND_OF_GROUP, count=1, cutoff=0.8):
            self._report(copy, f"its entry-point group {group!r} is not one of core's; did you mean {meant!r}?")

    def _keep(self, copy: _Copy) -> None:
        self.copies.setdefault(copy.name, []).append(copy)

    def _report(self, copy: _Copy, detail: str, *, shadowed: bool = False) -> None:
        source = copy.name or str(copy.path or "?")
        self.problems.append(Problem(printable(source), printable(detail), printable(copy.location), shadowed))

    def _effective(self, copies: list[_Copy]) -> _Copy:
        """The copy whose code Python imports: the first on `sys.path`. The others are reported."""
        first = copies[0]
        if len(copies) == 1:
            return first
        # Two in one folder come in the order of the directory, which means nothing.
        first = max((copy for copy in copies if copy.location == first.location), key=lambda copy: _order(copy.version))
        for copy in copies:
            if (copy.entries or first.entries) and not _same_folder(copy, first):
                self._report(copy, _shadowed_by(copy, first), shadowed=True)
        return first

    def _provider(self, copy: _Copy) -> Provider:
        specs: list[Spec] = []
        by_name: list[Spec] = []
        for entry in copy.entries:
            if (spec := self._spec(copy, entry)) is not None:
                (by_name if spec.kind in BY_NAME_ONLY else specs).append(spec)
        return Provider(
            copy.name,
            copy.version,
            tuple(specs),
            tuple(by_name),
            copy.requires,
            printable(copy.location),
            printable(copy.summary),
        )

    def _spec(self, copy: _Copy, entry: EntryPoint) -> Spec | None:
        if reason := unfit_alias(entry.name):
            self._report(copy, f"the alias {entry.name!r} in {entry.group} is left out: {reason}")
            return None
        return Spec(KIND_OF_GROUP[entry.group], normalize_alias(entry.name), clean_target(entry.value), copy.name)


def _text(path: Any, distribution: Any, name: str) -> str | None:
    """Content of a metadata file, or None. `read_text` takes twice as long, and an unreadable file for none."""
    if not isinstance(path, os.PathLike):
        text: str | None = distribution.read_text(name)
        return text
    try:
        return read_file(f"{path}{os.sep}{name}", MAX_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _has_metadata(path: Any) -> bool:
    if isinstance(path, os.PathLike):  # the paths of pathlib take five times as long
        return any(map(os.path.exists, (f"{path}{os.sep}METADATA", f"{path}{os.sep}PKG-INFO"))) or os.path.isfile(path)
    return any(found() for found in ((path / "METADATA").exists, (path / "PKG-INFO").exists, path.is_file))


def _one(headers: dict[str, list[str]], name: str, is_fit: Callable[[str], bool]) -> str:
    value = headers.get(name, [""])[0]
    if not value:
        raise ValueError(f"METADATA has no {name.title()}")
    if not is_fit(value):
        raise ValueError(f"METADATA has the {name.title()} {value!a}, which no package can have")
    return value


def _reinstall(name: str) -> str:
    return f"Try {pip_install(name, '--force-reinstall')}, or tell its authors"


def _same_folder(one: _Copy, other: _Copy) -> bool:
    """True if both are one: `lib64` is often a link to `lib`, and a folder can stand on `sys.path` twice."""
    return one is other or os.path.realpath(str(one.path)) == os.path.realpath(str(other.path))


def _shadowed_by(copy: _Copy, first: _Copy) -> str:
    if copy.location == first.location:
        return (
            f"{copy.version} is left over beside {first.version} in {first.location}: {_reinstall(copy.name)}"
        ).removesuffix(", or tell its authors")
    return (
        f"{copy.version} in {copy.location} is hidden by {first.version} in {first.location}, "
        f"which comes first on sys.path; uninstall one of them"
    )


def _order(version: str) -> Any:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")
