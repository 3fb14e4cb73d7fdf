"""Graphcore's IPUs for `core`: compiled training and inference through PopTorch."""

from typing import TYPE_CHECKING, Any

from core_ipu._version import __version__
from core_ipu.accelerator import IPUAccelerator

if TYPE_CHECKING:
    from core_ipu.strategy import IPUStrategy

__all__ = ["IPUAccelerator", "IPUStrategy", "__version__"]


def __getattr__(name: str) -> Any:
    """The strategy, when it is asked for: looking for devices doesn't wait for torch."""
    if name == "IPUStrategy":
        from core_ipu.strategy import IPUStrategy

        return IPUStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
