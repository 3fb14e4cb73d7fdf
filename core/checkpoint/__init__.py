"""The core's own CheckpointIOs; those of installed plugins can be imported here too."""

from typing import TYPE_CHECKING

from core.contract.checkpoint_io import CheckpointIO, Collectives
from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.checkpoint.any_form.formats import load_checkpoint, verify_checkpoint
    from core.checkpoint.async_io import AsyncCheckpointIO
    from core.checkpoint.copies.device_copies import await_copies
    from core.checkpoint.distributed_io import DistributedCheckpointIO
    from core.checkpoint.engine_folder_io import EngineFolderIO, reported_as_damage
    from core.checkpoint.file.mapped_file import load_mapped
    from core.checkpoint.single_file_io import SafetensorsCheckpointIO, TorchCheckpointIO
    from core.checkpoint.state.plain_state import to_plain
    from core.checkpoint.state.random_state import (
        check_random_state,
        collect_random_state,
        restore_random_state,
    )
    from core.checkpoint.state.shards import chunks_to_write, shape_of
    from core.checkpoint.state.whole import gather_whole
    from core.checkpoint.upkeep.finding import newest_valid
    from core.checkpoint.upkeep.finite import has_finite_weights
    from core.checkpoint.upkeep.stale import sweep_folder

__all__ = [
    "AsyncCheckpointIO",
    "CheckpointIO",
    "Collectives",
    "DistributedCheckpointIO",
    "EngineFolderIO",
    "SafetensorsCheckpointIO",
    "TorchCheckpointIO",
    "await_copies",
    "check_random_state",
    "chunks_to_write",
    "collect_random_state",
    "gather_whole",
    "has_finite_weights",
    "load_checkpoint",
    "load_mapped",
    "newest_valid",
    "reported_as_damage",
    "restore_random_state",
    "shape_of",
    "sweep_folder",
    "to_plain",
    "verify_checkpoint",
]

__getattr__, __dir__ = lazy_exports(__name__, kind="checkpoint io")
