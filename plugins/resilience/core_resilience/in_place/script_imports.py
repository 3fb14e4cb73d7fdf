"""The imports of a script, done before it runs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def load(script: str, *, is_module: bool) -> None:
    """Import what a script imports before it does anything else. Errors are the script's.

    Args:
        script: its path, or the name of a module.
        is_module: it is a name.
    """
    with contextlib.suppress(Exception):
        if is_module:
            found = importlib.util.find_spec(script)
            script = (found and found.origin) or ""
        for node in itertools.takewhile(_is_import, ast.parse(Path(script).read_bytes()).body):
            load_modules(_names(node))


def load_modules(names: Iterable[str]) -> None:
    """Import modules, as far as they can be."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _is_import(node: ast.stmt) -> bool:
    """True for an import, and for a docstring. What follows something else may depend on it."""
    return isinstance(node, ast.Import | ast.ImportFrom) or isinstance(
        getattr(node, "value", None), ast.Constant
    )


def _names(node: ast.stmt) -> list[str]:
    """The modules that a statement imports; what is imported from one may be a module too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
