"""The conformance suites of core-ddp. Imported by `core check` and the tests only: it needs
pytest.
"""

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)

from core import Capability, Strategy
from core_testing import (
    PARALLEL,
    DifferingConformance,
    DifferingSmoke,
    Differs,
    StrategyConformance,
    StrategySmoke,
)

_PRESETS = (
    "ddp_spawn",
    "ddp_fork",
    "ddp_notebook",
    "ddp_find_unused_parameters_false",
    "ddp_spawn_find_unused_parameters_false",
    "ddp_spawn_find_unused_parameters_true",
    "ddp_fork_find_unused_parameters_false",
    "ddp_fork_find_unused_parameters_true",
    "ddp_notebook_find_unused_parameters_false",
    "ddp_notebook_find_unused_parameters_true",
)


class TestDDP(StrategyConformance):
    """Two processes train as one device does."""

    alias = "ddp"
    expected_capabilities = PARALLEL
    known_failures = {
        "test_training_equals_one_device[unused_weights]": (
            "torch's DDP waits for gradients that don't come, without find_unused_parameters=True"
        ),
    }


class TestUnusedParameters(StrategyConformance):
    """The preset that really differs: it finds parameters without a gradient."""

    alias = "ddp_find_unused_parameters_true"
    new_interpreter = False
    expected_capabilities = PARALLEL


class TestPostLocalSGD(DifferingConformance):
    """Two steps together, then weights are averaged every second step."""

    alias = "ddp"
    options = {"find_unused_parameters": True}
    differs = Differs("weights are averaged every second step", within=0.1, agrees_after=2)
    expected_capabilities = (
        PARALLEL
        & ~(
            Capability.REPLICATED_PARAMETERS
            | Capability.SEVERAL_OPTIMIZERS
            | Capability.SEVERAL_MODULES
            | Capability.WEIGHTED_LOSSES
        )
        | Capability.OWNS_GRADIENTS
    )

    def make(self, **options: Any) -> Strategy:
        """With a state of its own: the hook counts in it."""
        state = post_localSGD_hook.PostLocalSGDState(
            None, None, 2, post_local_gradient_allreduce=False
        )
        return DifferingConformance.make(
            self,
            ddp_comm_state=state,
            ddp_comm_hook=post_localSGD_hook.post_localSGD_hook,
            model_averaging_period=2,
            **options,
        )


class TestPowerSGD(DifferingSmoke):
    """Gradients of rank one, and the rest of each compression in the next."""

    alias = "ddp"
    differs = Differs(
        "gradients travel as products of two vectors", within=0.2, steps_outstanding=10
    )
    expected_capabilities = PARALLEL & ~(
        Capability.REPLICATED_PARAMETERS | Capability.BIT_EXACT_RESUME | Capability.SEVERAL_MODULES
    )

    def make(self, **options: Any) -> Strategy:
        """With a state of its own, which keeps the rest."""
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
        return super().make(
            ddp_comm_state=state, ddp_comm_hook=powerSGD_hook.powerSGD_hook, **options
        )


class TestHalfGradients(DifferingSmoke):
    """Gradients travel in 16 bits, and what that rounds away is lost."""

    alias = "ddp"
    options = {"ddp_comm_hook": default_hooks.fp16_compress_hook}
    differs = Differs("gradients travel in float16", within=1e-2, steps_outstanding=0.1)


for _alias in _PRESETS:
    globals()[f"Test_{_alias}"] = type(
        f"Test_{_alias}", (StrategySmoke,), {"alias": _alias, "__module__": __name__}
    )
