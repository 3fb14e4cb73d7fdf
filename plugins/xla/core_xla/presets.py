"""Aliases that set options of a strategy."""

from __future__ import annotations

from typing import Any

from core_xla.parallel import XLAStrategy


def xla_debug(**options: Any) -> XLAStrategy:
    """`xla` with `debug=True`: torch_xla says why it cuts or compiles a graph."""
    return XLAStrategy(**{"debug": True, **options})
