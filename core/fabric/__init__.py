"""Your own training loop, on any strategy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.fabric.fabric import Fabric
    from core.fabric.loader import FabricDataLoader
    from core.fabric.module import FabricModule
    from core.fabric.optimizer import FabricOptimizer
    from core.fabric.seed import seed_everything

__all__ = ["Fabric", "FabricDataLoader", "FabricModule", "FabricOptimizer", "seed_everything"]

_HOMES = {
    "Fabric": "fabric",
    "FabricDataLoader": "loader",
    "FabricModule": "module",
    "FabricOptimizer": "optimizer",
    "seed_everything": "seed",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'core.fabric' has no attribute {name!r}")
    return getattr(importlib.import_module(f"core.fabric.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
