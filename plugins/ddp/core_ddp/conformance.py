"""What the conformance kit holds core-ddp to. Imported by `core check` and the tests only: it needs pytest."""

from core import Capability
from core.testing import StrategyConformance, StrategySmoke

_PRESETS = (
    *("ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_false"),
    *("ddp_spawn_find_unused_parameters_false", "ddp_spawn_find_unused_parameters_true"),
    *("ddp_fork_find_unused_parameters_false", "ddp_fork_find_unused_parameters_true"),
    *("ddp_notebook_find_unused_parameters_false", "ddp_notebook_find_unused_parameters_true"),
)


class TestDDP(StrategyConformance):
    """Two processes train as one device does."""

    alias = "ddp"
    expected_capabilities = (
        Capability.COLLECTIVES
        | Capability.NO_SYNC
        | Capability.MANUAL_OPTIMIZATION
        | Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.CLIP_BY_VALUE
        | Capability.BIT_EXACT_RESUME
    )
    known_failures = {
        "test_training_equals_one_device[unused_weights]": "torch's DDP waits for gradients that don't come, "
        "without find_unused_parameters=True",
    }


class TestUnusedParameters(StrategyConformance):
    """The preset that really differs: it finds parameters without a gradient."""

    alias = "ddp_find_unused_parameters_true"
    expected_capabilities = TestDDP.expected_capabilities


for _alias in _PRESETS:
    globals()[f"Test_{_alias}"] = type(f"Test_{_alias}", (StrategySmoke,), {"alias": _alias, "__module__": __name__})
