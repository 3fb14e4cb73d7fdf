"""Your own training loop, on any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.fabric.fabric import Fabric
    from core.fabric.loader import FabricDataLoader
    from core.fabric.module import FabricModule
    from core.fabric.optimizer import FabricOptimizer
    from core.fabric.processes import Ranks
    from core.fabric.rank_zero_decorator import rank_zero_info, rank_zero_only, rank_zero_warn
    from core.fabric.seed import draw_alike, seed_everything
    from core_weights import WeightDescription, WeightStream, WholeTensors

__all__ = [
    "Fabric",
    "FabricDataLoader",
    "FabricModule",
    "FabricOptimizer",
    "Ranks",
    "WeightDescription",
    "WeightStream",
    "WholeTensors",
    "draw_alike",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "seed_everything",
]

__getattr__, __dir__ = lazy_exports(__name__)
