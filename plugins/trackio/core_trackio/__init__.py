"""Trackio as a logger of `core`."""

from core_trackio._version import __version__
from core_trackio.logger import TrackioLogger

__all__ = ["TrackioLogger", "__version__"]
