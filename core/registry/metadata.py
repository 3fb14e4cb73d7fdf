"""Installed metadata as text. Most distributions have nothing to do with core: one loop passes over
all of them.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from core._version import DISTRIBUTION, TRAINING
from core.registry.names import normalize_distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from importlib_metadata import Distribution

MAX_BYTES = 1 << 20
"""The largest metadata file: those of real packages take kilobytes."""

_LINE_OF_OTHERS = re.compile(r"\s*(?:[#;].*|\[\s*(?!core\.)[^\s\]].*\]|[^\s\[#;=][^=]*=.*)?\s*")
"""A blank line or comment, the group of another program, or `name = value`."""


def relevant_distributions(distributions: Sequence[Distribution]) -> list[Distribution]:
    """The distributions that offer something to core, or whose entry points are damaged, and other
    copies of these.

    An environment has hundreds of others, so that the loop calls no function of ours.
    """
    # `_path` is where every version of importlib_metadata keeps the folder; it has no public way to
    # it.
    found = [getattr(distribution, "_path", None) for distribution in distributions]
    paths = [str(path) if isinstance(path, os.PathLike) else "" for path in found]
    folders = [os.path.basename(path).rpartition(".")[0].partition("-")[0] for path in paths]
    names = normalize_distribution("\0".join(folders)).split("\0")[: len(paths)]  # all in one call
    kept: set[str] = set()
    for name, path in zip(names, paths, strict=True):
        try:
            state = os.stat(f"{path}{os.sep}entry_points.txt")
            is_known = stat.S_ISREG(state.st_mode) and state.st_size <= MAX_BYTES
            if is_known:
                with open(f"{path}{os.sep}entry_points.txt", "rb", buffering=0) as file:
                    text = file.read().decode()
                # Without a group above it, a line is a bad one.
                is_known = text.lstrip()[:1] in "[" and all(
                    map(_LINE_OF_OTHERS.fullmatch, text.splitlines())
                )
        except (FileNotFoundError, NotADirectoryError):
            is_known = bool(path)  # it has no entry points, or no folder
        except (OSError, ValueError):
            is_known = False
        if not is_known:
            kept.add(name)
    return [
        distribution
        for distribution, name in zip(distributions, names, strict=True)
        if name in kept
    ]


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
    return (match["module"], match["attribute"] or "") if match else None


_NAME = re.compile(r"\s*([\w.-]+)")


def about_core(requirements: Iterable[str]) -> tuple[str, ...]:
    """Those of the `Requires-Dist` lines that are about the distributions of core itself."""
    return tuple(line for line in requirements if required_name(line) in (DISTRIBUTION, TRAINING))


def required_name(line: str) -> str:
    """The distribution that a `Requires-Dist` line is about, normalized."""
    match = _NAME.match(line)
    return normalize_distribution(match[1]) if match else ""
