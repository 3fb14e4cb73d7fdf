"""Your own training loop, on any strategy."""

from core.fabric.fabric import Fabric
from core.fabric.loader import FabricDataLoader
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer
from core.fabric.seed import seed_everything

__all__ = ["Fabric", "FabricDataLoader", "FabricModule", "FabricOptimizer", "seed_everything"]
