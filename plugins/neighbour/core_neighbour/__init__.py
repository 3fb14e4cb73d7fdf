"""The newest step in the memory of nodes, from which a run continues when one of them is lost.

from core.callbacks import MemoryCheckpoint

Trainer(strategy="fsdp", num_nodes=4, callbacks=MemoryCheckpoint()).fit(net, ckpt_path="last")
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_neighbour._version import __version__

if TYPE_CHECKING:
    from core_neighbour.in_memory import is_own_folder, kept_folders, memory_folder
    from core_neighbour.memory_checkpoint import MemoryCheckpoint, check_goes_back
    from core_neighbour.neighbour_io import NeighbourCheckpointIO

__all__ = [
    "MemoryCheckpoint",
    "NeighbourCheckpointIO",
    "__version__",
    "check_goes_back",
    "is_own_folder",
    "kept_folders",
    "memory_folder",
]

__getattr__, __dir__ = lazy_exports(__name__)
