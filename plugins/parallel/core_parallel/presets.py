"""The alias that is `ParallelStrategy` with options."""

from functools import partial

from core_parallel.strategy import ParallelStrategy

pipeline = partial(ParallelStrategy, pipeline="auto", data=1)
