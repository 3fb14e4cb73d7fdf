"""Where a path or a URL leads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def filesystem_of(path: PathLike) -> tuple[Any, str]:
    """The fsspec file system that a path or URL leads to, and the name there.

    `file://` takes `%20` for a space, as `Path.as_uri` writes it; fsspec alone would take it as it
    stands.
    """
    import fsspec

    text = os.fspath(path)
    if text.startswith("file:"):
        text = unquote(text)
    return fsspec.url_to_fs(text)  # type: ignore[no-any-return]
