"""A test double for Colossal-AI's accelerator: it lets LowLevelZeroPlugin run on a CPU, which it
doesn't by itself.

Streams do nothing, as on a CPU there are none; the rest, which is what is tested, is Colossal-AI's
own. Nothing of this is in the package: `plugin="low_level_zero"` is refused on CPUs.
"""

import contextlib

import torch

from core.strategies import STRATEGY_REGISTRY
from core_colossalai import ColossalAIStrategy, library


class Stream:
    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


def put_in_place():
    """Idempotent, in this process."""
    accelerators = library.load("colossalai.accelerator")
    accelerators.set_accelerator("cpu")
    accelerator, stream = accelerators.get_accelerator(), Stream()
    accelerator.Stream = accelerator.current_stream = lambda *args, **kwargs: stream
    accelerator.stream = lambda _: contextlib.nullcontext()
    accelerator.device_count = lambda: 1
    accelerator.synchronize = lambda *args, **kwargs: None
    torch.Tensor.record_stream = lambda self, _: None
    optimizers = library.load("colossalai.zero.low_level.low_level_optim")
    optimizers.LowLevelZeroOptimizer._sanity_checks = lambda self: None


class Zero1OnADouble(ColossalAIStrategy):
    """LowLevelZeroPlugin, stage 1, on a CPU whose accelerator is a double."""

    stage = 1

    def check_device(self, device_type):
        assert device_type == "cpu"

    def setup_environment(self):
        put_in_place()
        super().setup_environment()

    def __init__(self, **options):
        """Take all options of `ColossalAIStrategy`."""
        super().__init__(**{"plugin": "low_level_zero", "stage": self.stage, **options})


class Zero2OnADouble(Zero1OnADouble):
    """ZeRO, stage 2."""

    stage = 2


def register():
    """Under names that say so."""
    for alias, strategy in (
        ("zero_1_on_a_double", Zero1OnADouble),
        ("zero_2_on_a_double", Zero2OnADouble),
    ):
        if alias not in STRATEGY_REGISTRY:
            STRATEGY_REGISTRY.register(
                alias, strategy, "LowLevelZeroPlugin on a double for its accelerator"
            )
