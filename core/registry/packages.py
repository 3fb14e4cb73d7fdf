"""The check for the library that a plugin drives, before the plugin imports it."""

from __future__ import annotations

import importlib.util

from core.contract.errors import ConfigurationError


def require_package(package: str, *, user: str, install: str) -> None:
    """Check that a package is installed, without importing it. Plugins call it before they import their library.

    Args:
        package: as it is imported.
        user: the class or option that needs it, for the message.
        install: the name of its distribution.

    Raises:
        ConfigurationError: it isn't installed.
    """
    spec = importlib.util.find_spec(package)
    # A folder that the library once wrote here, such as `runs/`, passes for a package without a file of its own.
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"{user} needs the package {package}, which is not installed: `pip install {install}`."
        )
