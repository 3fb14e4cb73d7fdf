"""The conformance suites of core-ipu. Imported by `core check` and the tests only: it needs pytest.

They need IPUs, two for `ipu_strategy`, and are skipped without. core-ipu's own tests run them on
simulated ones, whose reports say so:
`POPTORCH_SIMULATED_IPUS=2 PYTHONPATH=plugins/ipu/tests/simulator core check ipu_strategy`.
"""

import os
from typing import ClassVar

import torch

from core import Capability
from core_testing import AcceleratorConformance, StrategyConformance, StrategySmoke

_WHOLE_BATCHES = (
    "a compiled program takes batches of one size: the rest of an epoch is left out "
    "of training, and said so"
)
_BY_NUMBER = (
    "the kit's step fails in its third batch, by batch_idx, which a compiled program doesn't follow"
)


class OnIPU:
    """The bounds for devices that have no float64 and no bfloat16."""

    ground: ClassVar[str | None] = "simulated" if "POPTORCH_SIMULATED_IPUS" in os.environ else None
    dtype: ClassVar[torch.dtype] = torch.float32
    heavy_modules: ClassVar[tuple[str, ...]] = ("poptorch",)


class IPUStrategySuite(OnIPU):
    """One process, whose results are compared with those of one CPU."""

    accelerator: ClassVar[str] = "ipu"
    compared_with: ClassVar[str | None] = "cpu"
    num_processes: ClassVar[int] = 1
    other_num_processes: ClassVar[int | None] = None
    tolerance: ClassVar[float] = 2e-6
    precisions: ClassVar[tuple[str, ...]] = ("32-true", "16-true")


class TestIPU(OnIPU, AcceleratorConformance):
    """The device: programs with tensors of the host."""

    alias = "ipu"
    holds_tensors = False
    tolerance = 1e-5


class TestIPUStrategy(IPUStrategySuite, StrategyConformance):
    """Two replicas, each with a half of what one device takes."""

    alias = "ipu_strategy"
    num_devices = data_parallel_size = 2
    expected_capabilities = (
        Capability.COMPILED_STEP
        | Capability.JOINT_SETUP
        | Capability.OWNS_ACCUMULATION
        | Capability.OWNS_CLIPPING
    )
    known_failures = {
        "test_uneven_lengths_lose_nothing": _WHOLE_BATCHES,
        "test_training_equals_one_device[accumulated_to_a_short_window]": _WHOLE_BATCHES,
        "test_runs_after_an_exception": _BY_NUMBER,
        "test_an_exception_arrives_unchanged": _BY_NUMBER,
        "test_a_failing_rank_ends_all": _BY_NUMBER,
        "test_a_killed_rank_ends_all": _BY_NUMBER,
    }


class TestIPUOnOne(IPUStrategySuite, StrategySmoke):
    """The other name of the strategy, on one device."""

    alias = "ipu"
