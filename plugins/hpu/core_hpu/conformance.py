"""The conformance suites of core-hpu. Imported by `core check` and the tests only: it needs pytest.

They need Gaudi devices, two for `hpu_parallel`, and are skipped without. core-hpu's own tests run
them on simulated ones, whose reports say so.
"""

import os
from typing import ClassVar

import pytest
import torch

from core import Capability
from core_testing import ONE_PROCESS, AcceleratorConformance, StrategyConformance, StrategySmoke

_IS_SIMULATED = "SIMULATED_GAUDI_DEVICES" in os.environ
_NEEDS_PINNED_MEMORY = (
    "to find unused parameters, torch's DDP wants pinned memory, which a device "
    "simulated in Python can't have"
)
_ENDS_THE_PROCESS = (
    "torch ends the process where Python raises in a backward on a device simulated in Python: its "
    "device guard calls Python while that error is under way, from a function that may not throw"
)


class OnHPU:
    """The bounds for devices that compute float64 in 32 bits."""

    ground: ClassVar[str | None] = "simulated" if _IS_SIMULATED else None
    dtype: ClassVar[torch.dtype] = torch.float32
    tolerance: ClassVar[float] = 1e-5
    heavy_modules: ClassVar[tuple[str, ...]] = ("habana_frameworks",)


class HPUStrategySuite(OnHPU):
    """The devices and formats with which the strategies are tested."""

    accelerator: ClassVar[str] = "hpu"
    precisions: ClassVar[tuple[str, ...]] = ("32-true", "bf16-true", "bf16-mixed")
    reduced_dtypes: ClassVar[tuple[torch.dtype, ...]] = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.uint8,
    )


class TestHPU(OnHPU, AcceleratorConformance):
    """The accelerator."""

    alias = "hpu"


class TestSingleHPU(HPUStrategySuite, StrategyConformance):
    """One device."""

    alias = "hpu_single"
    num_processes, other_num_processes = 1, None
    expected_capabilities = ONE_PROCESS


class TestHPUParallel(HPUStrategySuite, StrategyConformance):
    """Two processes train as one device does."""

    alias = "hpu_parallel"
    expected_capabilities = ONE_PROCESS | Capability.COLLECTIVES | Capability.NO_SYNC
    known_failures = {
        "test_training_equals_one_device[unused_weights]": (
            "torch's DDP waits for gradients that don't come, without find_unused_parameters=True"
        ),
    } | (
        {
            **dict.fromkeys(
                (
                    "test_losses_are_weighted[manual-1]",
                    "test_losses_are_weighted[manual-3]",
                    "test_training_equals_one_device[manual_optimization]",
                    "test_training_equals_one_device[two_optimizers]",
                ),
                _NEEDS_PINNED_MEMORY,
            ),
            "test_unfrozen_weights_are_trained_or_refused[between two steps]": _ENDS_THE_PROCESS,
        }
        if _IS_SIMULATED
        else {}
    )


class TestSingleHPUName(HPUStrategySuite, StrategySmoke):
    """The other name of `hpu_single`."""

    alias = "single_hpu"
    num_processes = 1


@pytest.mark.skip(reason="needs hardware: DeepSpeed's own build for Gaudi devices has no stand-in")
class TestHPUDeepSpeed(HPUStrategySuite, StrategySmoke):
    """DeepSpeed on Gaudi devices."""

    alias = "hpu_deepspeed"
