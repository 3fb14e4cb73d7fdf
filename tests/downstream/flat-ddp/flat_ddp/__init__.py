"""Data parallelism whose gradients travel in one message, for `core`."""

from functools import partial

from flat_ddp.strategy import FlatDDPStrategy
from flat_ddp.wrapper import FlatDDP

__all__ = ["FlatDDP", "FlatDDPStrategy", "flat_ddp_fork"]

flat_ddp_fork = partial(FlatDDPStrategy, start_method="fork")
