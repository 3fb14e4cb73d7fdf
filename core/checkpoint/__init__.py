"""How checkpoints are stored without a package of one's own; those of installed plugins can be imported here."""

from typing import TYPE_CHECKING, Any

from core.contract.checkpoint_io import CheckpointIO, Collectives

if TYPE_CHECKING:
    from core.checkpoint.random_state import collect_random_state, restore_random_state
    from core.checkpoint.torch_io import TorchCheckpointIO

__all__ = ["CheckpointIO", "Collectives", "TorchCheckpointIO", "collect_random_state", "restore_random_state"]

_MODULES = {
    "TorchCheckpointIO": "core.checkpoint.torch_io",
    "collect_random_state": "core.checkpoint.random_state",
    "restore_random_state": "core.checkpoint.random_state",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="checkpoint io", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
