"""Aim as a logger of `core`."""

from core_aim._version import __version__
from core_aim.logger import AimLogger

__all__ = ["AimLogger", "__version__"]
