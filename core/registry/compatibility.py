"""The check that a provider accepts this release of core, by its own metadata, before anything is imported."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.specifiers import SpecifierSet


def exclusion(requires: Iterable[str], core_version: str) -> str:
    """The reason why a provider can't be used with this release; empty if it can.

    Args:
        requires: its `Requires-Dist` lines about core.
        core_version: the release that runs.
    """
    return next(filter(None, (_exclusion(line, core_version) for line in requires)), "")


@functools.cache
def _exclusion(line: str, core_version: str) -> str:
    from packaging.specifiers import InvalidSpecifier
    from packaging.version import Version

    try:
        specifier = _specifier(line)
    except (InvalidSpecifier, ValueError) as cause:
        return f"its requirement {line!r} can't be read: {str(cause).splitlines()[0]}"
    # `>=0.2` rejects 0.2.dev3 by the letter, and with it every development checkout: the base version counts as well.
    versions = (core_version, Version(core_version).base_version)
    if any(specifier.contains(version, prereleases=True) for version in versions):
        return ""
    return f"it requires core{specifier}, and this is core {core_version}"


def _specifier(line: str) -> SpecifierSet:
    """The releases that a requirement accepts; all, where its marker doesn't hold here."""
    from packaging.specifiers import SpecifierSet

    if plain := re.fullmatch(r"\s*\w+\s*\(?([<>=!~][^;\[@()]*)\)?\s*", line):
        return SpecifierSet(plain[1])  # without the parser of requirements, whose import takes 10 ms
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    return requirement.specifier if applies else SpecifierSet()
