"""The library that parses: jsonargparse, which the extra `cli` brings."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError


def load() -> Any:
    """Import jsonargparse.

    Raises:
        ConfigurationError: it isn't installed.
    """
    try:
        import docstring_parser  # noqa: F401  (without it there is no help, which the extra brings)
        import jsonargparse
    except ImportError as error:
        raise ConfigurationError(
            f"cli_for needs {error.name}, which isn't installed. Install it: pip install 'core[cli]'."
        ) from error
    return jsonargparse
