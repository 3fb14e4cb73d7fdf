"""Parallelism in several dimensions for `core`: `Trainer(strategy=ParallelStrategy(pipeline=2), devices=4)`."""

from typing import TYPE_CHECKING, Any

from core_parallel._version import __version__
from core_parallel.presets import pipeline
from core_parallel.strategy import ParallelStrategy

if TYPE_CHECKING:
    from core_parallel.timeline import Timeline

__all__ = ["ParallelStrategy", "Timeline", "__version__", "pipeline"]


def __getattr__(name: str) -> Any:
    if name != "Timeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from core_parallel.timeline import Timeline  # few record one

    return Timeline
