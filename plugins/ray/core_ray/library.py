"""The only place that imports Ray: nothing of it is imported before processes are about to be
made.
"""

from __future__ import annotations

from typing import Any

from core.registry import import_library


def load(module: str = "ray") -> Any:
    """Ray, or a module of it; see `import_library`."""
    return import_library(
        module, user="The launcher 'ray'", install="Install it with: pip install 'ray>=2.60'"
    )
