"""torchao, imported when a precision is made."""

from __future__ import annotations

from typing import Any

from core.registry import import_library


def load() -> Any:
    """`torchao.quantization`; see `import_library`."""
    return import_library("torchao.quantization", user="core-torchao", install="Install it with: pip install torchao")
