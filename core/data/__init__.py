"""Data on its way to the model: one order shared by all ranks, and the transfer of batches to the
device.
"""

from core.data.batch_size import is_ambiguous, size_of
from core.data.device_transfer import make_transfer, to_device
from core.data.epochs import set_epoch
from core.data.global_batch import GlobalBatch, check_global_batch, divide_global_batch
from core.data.sampler import SeededIndex, ShardedSampler
from core.data.sampler_in_loader import (
    LoaderSharder,
    sampler_of,
    shard_loader,
    shuffles,
    without_shuffling,
)
from core.data.seeds import DrawingRng, mix_seed, seed_generators
from core.data.structure import map_leaves
from core.data.windows import MicroBatch, read_windows

__all__ = [
    "DrawingRng",
    "GlobalBatch",
    "LoaderSharder",
    "MicroBatch",
    "SeededIndex",
    "ShardedSampler",
    "check_global_batch",
    "divide_global_batch",
    "is_ambiguous",
    "make_transfer",
    "map_leaves",
    "mix_seed",
    "read_windows",
    "sampler_of",
    "seed_generators",
    "set_epoch",
    "shard_loader",
    "shuffles",
    "size_of",
    "to_device",
    "without_shuffling",
]
