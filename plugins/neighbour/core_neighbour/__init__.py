"""The newest step in the memory of nodes, from which a run continues when one of them is lost.

from core.callbacks import MemoryCheckpoint

Trainer(strategy="fsdp", num_nodes=4, callbacks=MemoryCheckpoint()).fit(net, ckpt_path="last")
"""

from core_neighbour._version import __version__
from core_neighbour.memory_checkpoint import MemoryCheckpoint, check_goes_back
from core_neighbour.neighbour_io import NeighbourCheckpointIO

__all__ = ["MemoryCheckpoint", "NeighbourCheckpointIO", "__version__", "check_goes_back"]
