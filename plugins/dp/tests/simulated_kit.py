"""The kit for `dp`, on two simulated devices; collected in a process of its own, by
`test_simulated_devices.py`.
"""

import simulated_devices  # noqa: F401  # the accelerator "sim"
from sim_device.strategy import HostState

import core_dp.conformance
from core.strategies import DataParallelStrategy


class HostDataParallel(HostState, DataParallelStrategy):
    """`dp`, whose state is copied to the CPU: no file can hold the simulated device's tensors."""


class TestDP(core_dp.conformance.TestDP):
    """Two devices in one process."""

    accelerator = "sim"
    trainer_options = {"devices": 2}
    precisions = ("32-true", "64-true")
    known_failures = {
        "test_batches_are_those_of_one_device": "each device sees its part of a batch",
        "test_training_equals_one_device[batch_norm]": "each device normalizes its part of a batch",
        "test_ranks_and_sizes_are_right": "the kit counts processes, and the one has two devices",
        "test_an_exception_arrives_unchanged": "torch's DataParallel adds the replica to the "
        "message",
    }

    def make(self):
        return HostDataParallel()
