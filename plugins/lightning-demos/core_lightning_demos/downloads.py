"""Data of the demos, fetched once."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

from core import ConfigurationError


def fetched(url: str, path: Path) -> Path:
    """The file at `path`, fetched from `url` if it isn't there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            urllib.request.urlretrieve(url, temporary)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ConfigurationError(
                f"{url} can't be fetched: {error}. Put that file at {path}."
            ) from error
        temporary.replace(path)
    return path
