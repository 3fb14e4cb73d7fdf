"""Names of what is being written, beside the file or folder that it will be renamed to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.partial", re.DOTALL)  # a name may hold a line break


def partial_path(path: Path, token: str) -> Path:
    """The path at which the next content of `path` is written.

    Args:
        path: of the file or folder.
        token: of the writer, 8 hexadecimal digits.
    """
    return path.with_name(f".{path.name}.{token}.partial")


def is_partial(name: str) -> bool:
    """True if a file or folder of this name is what a writer has left, or is at work on."""
    return _NAME.fullmatch(name) is not None
