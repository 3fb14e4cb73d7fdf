"""Bystanders: the installed distributions that have nothing to do with core. One loop passes over all of them."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

from core.registry.metadata import MAX_BYTES
from core.registry.names import normalize_distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE_OF_OTHERS = re.compile(r"\s*(?:[#;].*|\[\s*(?!core\.)[^\s\]].*\]|[^\s\[#;=][^=]*=.*)?\s*")
"""A blank line or comment, the group of another program, or `name = value`."""


def without_bystanders(distributions: Sequence[Any]) -> list[Any]:
    """The distributions that offer something to core, or are damaged, and other copies of these.

    An environment has hundreds of others, so that the loop calls no function of ours. What it can't vouch for is kept.
    """
    # `_path` is where every version of importlib_metadata keeps the folder; it has no public way to it.
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
                is_known = text.lstrip()[:1] in "[" and all(map(_LINE_OF_OTHERS.fullmatch, text.splitlines()))
        except (FileNotFoundError, NotADirectoryError):
            is_known = True  # it has no entry points
        except (OSError, ValueError):
            is_known = False
        headers = (f"{path}{os.sep}METADATA", f"{path}{os.sep}PKG-INFO")
        # pip renames a folder to ~name while it uninstalls.
        if not (is_known and name[:1] not in "~-" and (any(map(os.path.exists, headers)) or os.path.isfile(path))):
            kept.add(name)
    return [distribution for distribution, name in zip(distributions, names, strict=True) if name in kept]
