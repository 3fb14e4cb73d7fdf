"""The one door to Ray: nothing of it is imported before processes are about to be made."""

from __future__ import annotations

import importlib
from typing import Any

from core import PluginLoadError


def load(module: str = "ray") -> Any:
    """Ray, or a module of it.

    Raises:
        PluginLoadError: it isn't installed, or can't be imported.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a compiled library raises when it doesn't fit
        raise PluginLoadError(
            f"The launcher 'ray' needs Ray, which can't be imported: {type(error).__name__}: {error}. "
            "Install it with: pip install 'ray>=2.60'"
        ) from error
