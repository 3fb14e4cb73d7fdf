"""The core's own CheckpointIOs; those of installed plugins can be imported here too."""

from typing import TYPE_CHECKING

from core.contract.checkpoint_io import CheckpointIO, Collectives
from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.checkpoint.async_io import AsyncCheckpointIO
    from core.checkpoint.device_copies import await_copies
    from core.checkpoint.distributed_io import DistributedCheckpointIO
    from core.checkpoint.finding import newest_valid
    from core.checkpoint.formats import load_checkpoint, verify_checkpoint
    from core.checkpoint.left_over import sweep_folder
    from core.checkpoint.mapped_file import load_mapped
    from core.checkpoint.neighbour_io import NeighbourCheckpointIO
    from core.checkpoint.plain_state import to_plain
    from core.checkpoint.random_state import check_random_state, collect_random_state, restore_random_state
    from core.checkpoint.safetensors_io import SafetensorsCheckpointIO
    from core.checkpoint.torch_io import TorchCheckpointIO
    from core.checkpoint.whole import gather_whole

__all__ = [
    "AsyncCheckpointIO",
    "CheckpointIO",
    "Collectives",
    "DistributedCheckpointIO",
    "NeighbourCheckpointIO",
    "SafetensorsCheckpointIO",
    "TorchCheckpointIO",
    "await_copies",
    "check_random_state",
    "collect_random_state",
    "gather_whole",
    "load_checkpoint",
    "load_mapped",
    "newest_valid",
    "restore_random_state",
    "sweep_folder",
    "to_plain",
    "verify_checkpoint",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        ".async_io": ("AsyncCheckpointIO",),
        ".device_copies": ("await_copies",),
        ".distributed_io": ("DistributedCheckpointIO",),
        ".finding": ("newest_valid",),
        ".formats": (
            "load_checkpoint",
            "verify_checkpoint",
        ),
        ".left_over": ("sweep_folder",),
        ".mapped_file": ("load_mapped",),
        ".neighbour_io": ("NeighbourCheckpointIO",),
        ".plain_state": ("to_plain",),
        ".random_state": (
            "check_random_state",
            "collect_random_state",
            "restore_random_state",
        ),
        ".safetensors_io": ("SafetensorsCheckpointIO",),
        ".torch_io": ("TorchCheckpointIO",),
        ".whole": ("gather_whole",),
    },
    kind="checkpoint io",
)
