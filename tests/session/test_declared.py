"""What a strategy's class declares is checked before any of its methods counts on it."""

import pytest
import torch

from core import Capability, ConfigurationError, Fabric, Module, Strategy
from support.small_nets import Net, batches, fit


def test_capabilities_as_a_method():
    class WithoutProperty(Strategy):
        def capabilities(self):
            return Capability.NONE

    with pytest.raises(
        ConfigurationError,
        match=r"WithoutProperty\.capabilities is .*; expected .*Capability.*@property",
    ):
        Fabric(strategy=WithoutProperty(), accelerator="cpu")


def test_a_device_of_another_type_is_refused_before_check():
    class Checked(Strategy):
        device_types = ("hpu", "cuda")

        def check(self):
            raise AssertionError("it counts on the devices")

    with pytest.raises(
        ConfigurationError,
        match=r"Checked trains on devices of type 'hpu' or 'cuda', and this run is on 'cpu'\. "
        r"Pass accelerator='hpu' or 'cuda', or leave the strategy to strategy='auto'",
    ):
        Fabric(strategy=Checked(), accelerator="cpu")


@pytest.mark.parametrize(
    ("capability", "protocol", "method"),
    [
        (Capability.JOINT_SETUP, "SetsUpJointly", "setup_module_and_optimizers"),
        (Capability.MAKES_OPTIMIZERS, "MakesOptimizers", "configure_optimizers"),
        (Capability.COMPUTES_LOSS, "ComputesLoss", "compute_loss"),
    ],
    ids=["joint", "optimizers", "loss"],
)
def test_a_capability_without_the_methods_that_it_promises(capability, protocol, method):
    class Promising(Strategy):
        capabilities = capability

    with pytest.raises(
        ConfigurationError,
        match=rf"declares Capability\.{capability.name}, .* core\.contract\.{protocol}, and has no "
        rf"{method}\(\)",
    ):
        Fabric(strategy=Promising(), accelerator="cpu")


def test_a_strategy_that_makes_optimizers_is_asked_and_the_module_is_not():
    class Making(Strategy):
        capabilities = Capability.MAKES_OPTIMIZERS

        def configure_optimizers(self, module):
            return torch.optim.SGD(module.parameters(), lr=0.5)

    class Bare(Net):
        configure_optimizers = Module.configure_optimizers

        def on_train_end(self):
            assert self.trainer.optimizers[0].param_groups[0]["lr"] == 0.5

    fit(Bare(), batches(1), strategy=Making())
