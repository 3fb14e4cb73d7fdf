"""A test double for CUDA's streams: it lets FairScale's FSDP run on a CPU, which it doesn't by
itself.

Streams do nothing, as on a CPU there are none, and gloo reduces lists of tensors, as FairScale does
where its variable ENABLE_NCCL_BASE_COLLECTIVES is 0; the rest, which is what is tested, is
FairScale's own. Nothing of this is in the package: `fsdp_fairscale` is refused without CUDA.
"""

import contextlib

import torch

from core.strategies import STRATEGY_REGISTRY
from core_fairscale import FullyShardedFairScaleStrategy


class Stream:
    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


def put_in_place():
    """Idempotent, in this process."""
    from fairscale.internal import reduce_scatter_bucketer
    from fairscale.nn.data_parallel import fully_sharded_data_parallel as wrapper

    if hasattr(wrapper, "is_on_a_double"):
        return
    stream = Stream()
    torch.cuda.current_stream = lambda *args, **kwargs: stream
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.Tensor.record_stream = lambda self, _: None
    setup_streams = wrapper.FullyShardedDataParallel._setup_streams

    def without_cuda(self):
        setup_streams(self)
        if self._is_root and not self._streams:  # units share the dict
            self._streams.update(
                dict.fromkeys(("fp32_to_fp16", "all_gather", "post_backward"), stream)
            )

    wrapper.FullyShardedDataParallel._setup_streams = without_cuda
    reduce_scatter_bucketer.enable_nccl_base_collectives = False
    wrapper.is_on_a_double = True


class OnADouble(FullyShardedFairScaleStrategy):
    """FairScale's FSDP on a CPU, over a double for CUDA's streams."""

    def check_device(self, device_type):
        assert device_type == "cpu"

    def setup_environment(self):
        put_in_place()
        super().setup_environment()


class InUnitsOnADouble(OnADouble):
    """The same, with every layer a unit of its own."""

    def __init__(self, *given, **options):
        """Take all options of `FullyShardedFairScaleStrategy`."""
        super().__init__(*given, **{"min_num_params": 1, **options})


def register():
    """Under names that say so."""
    for alias, strategy in (
        ("fsdp_on_a_double", OnADouble),
        ("fsdp_in_units_on_a_double", InUnitsOnADouble),
    ):
        if alias not in STRATEGY_REGISTRY:
            STRATEGY_REGISTRY.register(
                alias, strategy, "FairScale's FSDP on a double for CUDA's streams"
            )
