"""The imports of a script, done before it runs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
from pathlib import Path


def load(script: str, *, is_module: bool) -> None:
    """Import what a script imports at its top, so that a process that waits can begin at once. Errors are the script's.

    Args:
        script: its path, or the name of a module.
        is_module: it is a name.
    """
    with contextlib.suppress(Exception):
        if is_module:
            found = importlib.util.find_spec(script)
            script = (found and found.origin) or ""
        for node in ast.parse(Path(script).read_bytes()).body:
            for name in _names(node):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.distributed")


def _names(node: ast.stmt) -> list[str]:
    """The modules that a statement imports; what is imported from one may be a module too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
