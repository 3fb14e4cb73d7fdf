"""Is the library there that a logger is made for?"""

from __future__ import annotations

import importlib.util

from core.contract.errors import ConfigurationError


def require_package(logger: str, package: str, *, extra: str) -> None:
    """Look for a package without importing it.

    Args:
        logger: the class that needs it.
        package: as it is imported.
        extra: of core, that installs it.

    Raises:
        ConfigurationError: it isn't installed.
    """
    spec = importlib.util.find_spec(package)
    # A folder that the library once wrote here, such as `wandb/`, passes for a package without a file of its own.
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"{logger} needs the package {package}, which is not installed: pip install 'core[{extra}]'. "
            "CSVLogger needs no package."
        )
