"""Where Monarch is imported in the program: nothing of it is before processes are about to be
made.
"""

from __future__ import annotations

from typing import Any

from core.registry import import_library


def load(module: str = "monarch.actor") -> Any:
    """Monarch's actors, or another module; see `import_library`."""
    return import_library(
        module,
        user="The launcher 'monarch'",
        install="Install it with: pip install 'torchmonarch>=0.7,<0.8'",
    )
