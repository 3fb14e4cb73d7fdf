"""A strategy whose author forgot a `return` is refused."""

import pytest
import torch

from core import Capability, ConfigurationError, Fabric, Strategy
from support.small_nets import Net, batches, fit


@pytest.mark.parametrize(
    "method", ["setup_module", "setup_optimizer", "setup_module_and_optimizers", "optimizer_step"]
)
def test_a_forgotten_return(method):
    class WithoutModule(Strategy):
        def setup_module(self, module):
            super().setup_module(module)

    class WithoutOptimizer(Strategy):
        def setup_optimizer(self, optimizer):
            pass

    class WithoutBoth(Strategy):
        capabilities = Capability.JOINT_SETUP

        def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
            pass

    class WithoutAnswer(Strategy):
        def optimizer_step(self, optimizer, closure=None):
            super().optimizer_step(optimizer, closure)

    kinds = {
        "setup_module": WithoutModule,
        "setup_optimizer": WithoutOptimizer,
        "setup_module_and_optimizers": WithoutBoth,
        "optimizer_step": WithoutAnswer,
    }
    kind = kinds[method]
    with pytest.raises(
        ConfigurationError, match=rf"{kind.__name__}\.{method} returned None; expected .* Return "
    ):
        fit(Net(), batches(1), strategy=kind())


def test_a_module_without_parameters_is_one():
    assert Fabric(strategy=Strategy(), accelerator="cpu").setup(torch.nn.Identity()) is not None
