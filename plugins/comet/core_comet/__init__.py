"""Comet as a logger of `core`."""

from core_comet._version import __version__
from core_comet.logger import CometLogger

__all__ = ["CometLogger", "__version__"]
