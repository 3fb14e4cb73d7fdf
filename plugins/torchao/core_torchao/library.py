"""torchao, imported when a precision is made."""

from __future__ import annotations

from typing import Any

from core.registry import import_library

_INSTALL = "Install it with: pip install torchao"


def load() -> Any:
    """`torchao.quantization`; see `import_library`."""
    return import_library("torchao.quantization", user="core-torchao", install=_INSTALL)


def load_float8() -> Any:
    """`torchao.float8`; see `import_library`."""
    return import_library("torchao.float8", user="core-torchao", install=_INSTALL)
