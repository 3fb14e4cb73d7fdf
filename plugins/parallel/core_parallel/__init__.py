"""Parallelism in several dimensions for `core`: `Trainer(strategy=ParallelStrategy(pipeline=2), devices=4)`."""

from core_parallel._version import __version__
from core_parallel.presets import pipeline
from core_parallel.strategy import ParallelStrategy

__all__ = ["ParallelStrategy", "__version__", "pipeline"]
