"""The conformance suites of core-colossalai. Imported by `core check` and the tests only: it needs
pytest.

`torch_ddp` is what runs on CPUs. The other plugins need GPUs, and are refused elsewhere.
"""

import os
import warnings
from importlib.util import find_spec

from core import Capability
from core_testing import PARALLEL, CheckpointIOConformance, StrategyConformance

if (_found := find_spec("colossalai")) and _found.origin:  # a folder of that name has none
    # Once here, and not in each of the ranks that are forked from this process: transformers is
    # behind it.
    _before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import colossalai.booster.plugin  # noqa: F401
    os.environ.clear()
    os.environ.update(_before)

_SYNC_BATCH_NORM = (
    "Colossal-AI makes SyncBatchNorm of every BatchNorm, which torch has for GPUs "
    "only: it is refused"
)


class TestColossalAI(StrategyConformance):
    """Two processes train as one device does, with TorchDDPPlugin."""

    alias = "colossalai"
    timeout_s = 120
    heavy_modules = ("colossalai",)
    expected_capabilities = (PARALLEL | Capability.JOINT_SETUP) & ~Capability.REPLICATED_PARAMETERS
    known_failures = {
        "test_training_equals_one_device[batch_norm]": _SYNC_BATCH_NORM,
        "test_every_part_comes_back": _SYNC_BATCH_NORM,
        "test_training_equals_one_device[unused_weights]": (
            "torch's DDP waits for gradients that don't come, without find_unused_parameters=True"
        ),
    }


class TestColossalAINative(CheckpointIOConformance):
    """Colossal-AI's own layout, which core reads and only the Booster writes."""

    alias = "colossalai_native"
    known_failures = dict.fromkeys(
        CheckpointIOConformance.tests_that_save,
        "Colossal-AI's Booster writes it, and a state can't be saved in it",
    )
