"""The library that a plugin drives: looked for before work, imported where it is needed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from core.contract.errors import ConfigurationError, PluginLoadError


def require_package(package: str, *, user: str, install: str) -> None:
    """Check that a package is installed, without importing it. Plugins call it before they import
    their library.

    Args:
        package: as it is imported.
        user: the class or option that needs it, for the message.
        install: the name of its distribution.

    Raises:
        ConfigurationError: it isn't installed.
    """
    spec = importlib.util.find_spec(package)
    # A folder that the library once wrote here, such as `runs/`, passes for a package without a
    # file of its own.
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"{user} needs the package {package}, which is not installed: `pip install {install}`."
        )


def import_library(name: str, *, user: str, install: str) -> Any:
    """Import the library that a plugin drives, or a module of it. Called by a plugin where it needs
    it.

    Args:
        name: of the module.
        user: what needs it, the beginning of the message: `"strategy='acme'"`.
        install: how to install it, the end of the message:
            `"Install it with: pip install 'acme>=2'"`.

    Raises:
        PluginLoadError: it isn't installed, or can't be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a compiled library raises when it doesn't fit
        raise PluginLoadError(
            f"{user} needs the package {name.partition('.')[0]}, which can't be imported: "
            f"{type(error).__name__}: {error}. {install}"
        ) from error
