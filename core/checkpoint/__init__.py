"""How checkpoints are stored without a package of one's own; those of installed plugins can be imported here."""

from typing import TYPE_CHECKING, Any

from core.contract.checkpoint_io import CheckpointIO, Collectives

if TYPE_CHECKING:
    from core.checkpoint.async_io import AsyncCheckpointIO
    from core.checkpoint.distributed_io import DistributedCheckpointIO
    from core.checkpoint.finding import newest_valid
    from core.checkpoint.formats import load_checkpoint, verify_checkpoint
    from core.checkpoint.random_state import collect_random_state, restore_random_state
    from core.checkpoint.safetensors_io import SafetensorsCheckpointIO
    from core.checkpoint.torch_io import TorchCheckpointIO

__all__ = [
    "AsyncCheckpointIO",
    "CheckpointIO",
    "Collectives",
    "DistributedCheckpointIO",
    "SafetensorsCheckpointIO",
    "TorchCheckpointIO",
    "collect_random_state",
    "load_checkpoint",
    "newest_valid",
    "restore_random_state",
    "verify_checkpoint",
]

_MODULES = {
    "AsyncCheckpointIO": "core.checkpoint.async_io",
    "DistributedCheckpointIO": "core.checkpoint.distributed_io",
    "SafetensorsCheckpointIO": "core.checkpoint.safetensors_io",
    "TorchCheckpointIO": "core.checkpoint.torch_io",
    "collect_random_state": "core.checkpoint.random_state",
    "load_checkpoint": "core.checkpoint.formats",
    "newest_valid": "core.checkpoint.finding",
    "restore_random_state": "core.checkpoint.random_state",
    "verify_checkpoint": "core.checkpoint.formats",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="checkpoint io", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
