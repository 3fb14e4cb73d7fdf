"""The conformance suites of core-xla. Imported by `core check` and the tests only: it needs
pytest.
"""

import pytest

from core import Capability
from core_testing import (
    ONE_PROCESS,
    AcceleratorConformance,
    ClusterEnvironmentConformance,
    LauncherConformance,
    StrategyConformance,
    StrategySmoke,
)

_PRECISIONS = ("32-true", "64-true", "bf16-true", "16-true", "bf16-mixed")
_FUSED = "torch has no fused optimizer for devices of XLA, whose graph is fused as a whole"
_MUON = "torch.optim.Muon orthogonalizes in bfloat16, which XLA rounds at other places than the CPU"
_VARIABLES = (
    "torch_xla reads its options from variables as long as the process lives, and sets "
    "those that are open"
)


class XLAConformance(StrategyConformance):
    """One process, against plain torch on the CPU."""

    accelerator = "xla"
    compared_with = "cpu"
    num_processes = 1
    other_num_processes = None
    precisions = _PRECISIONS
    timeout_s = 240
    heavy_modules = ("torch_xla",)
    expected_capabilities = ONE_PROCESS & ~Capability.INFERENCE_MODE
    known_failures = {
        "test_training_equals_one_device[adamw_fused]": _FUSED,
        "test_training_equals_one_device[matrices_apart]": _MUON,
        "test_teardown_leaves_nothing[environment_variables]": _VARIABLES,
    }


class TestSingleXLA(XLAConformance):
    """One device of XLA."""

    alias = "single_xla"


class TestSPMD(XLAConformance):
    """One process over four devices."""

    alias = "xla_spmd"
    num_devices = 4


class TestXLAFSDP(StrategySmoke):
    """The same with all parameters cut: its equality is what the suite above doesn't show."""

    alias = "xla_fsdp"
    accelerator = "xla"
    compared_with = "cpu"
    num_processes = 1
    num_devices = 4
    other_num_processes = None
    timeout_s = 240


class TestXLA(StrategySmoke):
    """A process a device, of which there is one here: several need TPUs."""

    alias = "xla"
    accelerator = "xla"
    compared_with = "cpu"
    num_processes = 1
    other_num_processes = None
    timeout_s = 240


class TestXLADebug(TestXLA):
    """The same, and torch_xla says why it cuts and compiles."""

    alias = "xla_debug"


class TestTPUSpawn(TestXLA):
    """An older name of `xla`."""

    alias = "tpu_spawn"


class TestTPUSpawnDebug(TestXLA):
    """An older name of `xla_debug`."""

    alias = "tpu_spawn_debug"


class TestSingleTPU(TestXLA):
    """Another name of `single_xla`."""

    alias = "single_tpu"


class TestSingleDeviceXLA(TestXLA):
    """An older name of `single_xla`."""

    alias = "single_device_xla"


@pytest.mark.skip(reason="needs a TPU")
class TestTPU(AcceleratorConformance):
    """TPUs only."""

    alias = "tpu"


@pytest.mark.skip(
    reason="needs TPUs: torch_xla makes a process a device, and the processor's devices share one"
)
class TestXLALauncher(LauncherConformance):
    """torch_xla's own launch."""

    alias = "xla"


class TestXLAAccelerator(AcceleratorConformance):
    """The devices that the processor plays, with `PJRT_DEVICE=CPU`; elsewhere TPUs."""

    alias = "xla"
    timeout_s = 240


class TestXLAEnvironment(ClusterEnvironmentConformance):
    """The second host of a slice of two; the launcher has the ranks."""

    alias = "xla"
    variables = {"TPU_WORKER_HOSTNAMES": "host-0,host-1", "TPU_WORKER_ID": "1"}
    expected = {
        "world_size": 2,
        "global_rank": 1,
        "node_rank": 1,
        "main_address": "host-0",
        "main_port": 29500,
    }
    devices = (1, 2)
    malformed = "TPU_WORKER_ID"
