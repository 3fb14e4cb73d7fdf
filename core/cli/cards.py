"""Cards: results of the conformance kit on a package, in a file beside its code or in a folder in
the user's home.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.text.printable import printable

if TYPE_CHECKING:
    from core.registry import Row

NAME = "card.json"
"""The file, in the folder of a package."""


def package_folder(target: str) -> Path | None:
    """The folder of the package that holds what an entry point names; None if there is none.
    Nothing is imported.
    """
    spec = find_spec(target.partition(":")[0].partition(".")[0])
    if spec is None or not spec.origin or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent


@cache
def files_digest(folder: Path) -> str:
    """SHA-256 over the paths and contents of a package's files, but for its card and what Python
    has compiled.
    """
    digest = hashlib.sha256()
    for path, content in digests(folder).items():
        if path != NAME:
            digest.update(f"{content}  {path}\n".encode())
    return digest.hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in a folder but for what Python has compiled, by path; empty for a link
    to a folder.
    """
    found = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    digests = {}
    for path in found:
        if "__pycache__" not in path.parts:
            digest = ""
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            digests[path.relative_to(folder).as_posix()] = digest
    return digests


def own_card(provider: str) -> Path:
    """The card of a package that the user's own runs of the kit have filled."""
    return Path(
        os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share",
        "core",
        "cards",
        f"{provider}.json",
    )


def proof(row: Row) -> str:
    """The newest result of an offered plugin on the installed files, and who has run it; or
    `"nothing"`.
    """
    folder = package_folder(row.target)
    if folder is None:
        return "nothing"
    newest = "nothing"
    for path, by in ((own_card(row.provider), "rerun here"), (folder / NAME, "by its author")):
        for each in _results(path):
            if (each.get("kind"), each.get("alias")) == (row.kind, row.alias):
                outcomes = each.get("outcomes", {})
                passed = outcomes.get("passed", 0)
                total = passed + outcomes.get("failed", 0) + outcomes.get("xfailed", 0)
                text = printable(f"{passed} of {total}, {by}, {each.get('date')}")
                if each.get("files") == files_digest(folder):
                    return text
                newest = f"not of these files, {text}"
    return newest


def _results(path: Path) -> list[dict[str, Any]]:
    """The results in a card; none if it is missing or isn't one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["results"]
        return [each for each in found if isinstance(each, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
