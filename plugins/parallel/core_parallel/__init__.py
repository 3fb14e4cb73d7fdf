"""Parallelism in several dimensions for `core`:
`Trainer(strategy=MeshParallelStrategy(pipeline=2), devices=4)`.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_parallel._version import __version__
from core_parallel.presets import pipeline
from core_parallel.strategy import MeshParallelStrategy

if TYPE_CHECKING:
    from core_parallel.experts.expert_list import ExpertList
    from core_parallel.experts.expert_load import ExpertLoad
    from core_parallel.profiling.timeline import Timeline

__all__ = [
    "ExpertList",
    "ExpertLoad",
    "MeshParallelStrategy",
    "ParallelStrategy",
    "Timeline",
    "__version__",
    "pipeline",
]

ParallelStrategy = MeshParallelStrategy
"""The earlier name of `MeshParallelStrategy`, until 1.0. `core.strategies.ParallelStrategy` is the
base class.
"""


__getattr__, __dir__ = lazy_exports(__name__)
