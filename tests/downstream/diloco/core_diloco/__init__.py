"""DiLoCo for core: ranks train alone, and take an outer step together every so often."""

from core_diloco._version import __version__
from core_diloco.strategy import DilocoStrategy

__all__ = ["DilocoStrategy", "__version__"]
