"""Installed metadata as text. Most distributions have nothing to do with core: one loop passes over
all of them.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from core._version import DISTRIBUTION, TRAINING
from core.registry.names import normalize_distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from importlib_metadata import Distribution

_LINE_OF_OTHERS = re.compile(r"\s*(?:[#;].*|\[\s*(?!core\.)[^\s\]].*\]|[^\s\[#;=][^=]*=.*)?\s*")
"""A blank line or comment, the group of another program, or `name = value`."""


def folder_of(distribution: Distribution) -> str:
    """The folder with the metadata of a distribution."""
    # `_path` is where every version of importlib_metadata keeps it; there is no public way to it
    return str(getattr(distribution, "_path", distribution)).rstrip("/\\")


def relevant_distributions(distributions: Sequence[Distribution]) -> list[Distribution]:
    """The distributions that offer something to core, or whose entry points are damaged, and other
    copies of these.

    An environment has hundreds of others, so that only the first pass looks at all of them.
    """
    paths = list(map(folder_of, distributions))
    folders = [os.path.basename(path).rpartition(".")[0].partition("-")[0] for path in paths]
    names = normalize_distribution("\0".join(folders)).split("\0")[: len(paths)]  # in one call
    kept = {name for name, path in zip(names, paths, strict=True) if not _is_of_others(path)}
    return [
        distribution
        for distribution, name in zip(distributions, names, strict=True)
        # pip renames the folder to ~name while it uninstalls, and leaves it behind when it is
        # killed
        if name in kept and not name.startswith("~")
    ]


def _is_of_others(path: str) -> bool:
    """True if a folder of metadata has no entry points, or those of other programs, in order."""
    try:
        with open(f"{path}{os.sep}entry_points.txt", encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    # without a group above it, a line is a bad one
    return text.lstrip()[:1] in "[" and all(map(_LINE_OF_OTHERS.fullmatch, text.splitlines()))


class EntryPoint(NamedTuple):
    """One line `name = value` below `[group]`."""

    group: str
    name: str
    value: str


def parse_entry_points(text: str) -> list[EntryPoint]:
    """Read `entry_points.txt`.

    Raises:
        ValueError: a line is bad.
    """
    entries: list[EntryPoint] = []
    group = ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            group = line[1:-1].strip()
            continue
        name, equals, value = line.partition("=")
        if not (group and name and equals):
            raise ValueError(
                f"line {number} of entry_points.txt is {line[:99]!r}, and not [group] or name = "
                "value"
            )
        entries.append(EntryPoint(group, name.rstrip(), value.lstrip()))
    return entries


def parse_headers(text: str) -> dict[str, list[str]]:
    """Read the headers of `METADATA`, by lower-case name, each with all its values. The description
    is left alone.
    """
    headers: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        # Also a line of blanks ends the headers: what follows is free text, which may look like
        # one.
        if not line.strip():
            break
        name, colon, value = line.partition(":")
        # An indented line continues the one before it, as those of a license do; none of ours needs
        # that.
        if colon and not line[0].isspace():
            headers.setdefault(name.lower(), []).append(value.strip())
    return headers


_TARGET = re.compile(
    r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*)(:(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*))?"
)
_EXTRAS = re.compile(r"\s*\[[^]]*]\s*$")


def clean_target(value: str) -> str:
    """Leave out the extras of an entry point's value, and blanks around the colon."""
    return re.sub(r"\s*:\s*", ":", _EXTRAS.sub("", value).strip())


def split_target(target: str) -> tuple[str, str] | None:
    """Module and attribute of `"module:attribute"` (the attribute may be empty), or None for
    anything else.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return None
    return match["module"], match["attribute"] or ""


_NAME = re.compile(r"\s*([\w.-]+)")


def about_core(requirements: Iterable[str]) -> tuple[str, ...]:
    """Those of the `Requires-Dist` lines that are about the distributions of core itself."""
    return tuple(line for line in requirements if required_name(line) in (DISTRIBUTION, TRAINING))


def required_name(line: str) -> str:
    """The distribution that a `Requires-Dist` line is about, normalized."""
    match = _NAME.match(line)
    if match is None:
        return ""
    return normalize_distribution(match[1])
