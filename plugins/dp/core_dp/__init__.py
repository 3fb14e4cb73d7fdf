"""torch's DataParallel for `core`: one process, several devices."""

from core_dp._version import __version__
from core_dp.strategy import DataParallelStrategy, DDP2Strategy

__all__ = ["DDP2Strategy", "DataParallelStrategy", "__version__"]
