"""The alias that is `MeshParallelStrategy` with options."""

from functools import partial

from core_parallel.strategy import MeshParallelStrategy

pipeline = partial(MeshParallelStrategy, pipeline="auto", data=1)
