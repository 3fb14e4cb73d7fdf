"""File systems of paths and URLs."""

from __future__ import annotations

import os
from typing import Any


def get_filesystem(path: str | os.PathLike[str], **options: Any) -> Any:
    """The file system of a local path or a URL; `options` are fsspec's."""
    import fsspec

    return fsspec.url_to_fs(os.fspath(path), **options)[0]
