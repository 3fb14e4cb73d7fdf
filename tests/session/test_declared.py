"""What a strategy's class declares is checked before any of its methods counts on it."""

import pytest

from core import Capability, ConfigurationError, Fabric, Strategy


class OnGaudi(Strategy):
    device_types = ("hpu", "cuda")


def test_capabilities_as_a_method():
    class WithoutProperty(Strategy):
        def capabilities(self):
            return Capability.NONE

    with pytest.raises(
        ConfigurationError, match=r"WithoutProperty\.capabilities is .*; expected .*Capability.*@property"
    ):
        Fabric(strategy=WithoutProperty(), accelerator="cpu")


def test_a_device_of_another_type_is_refused_before_check():
    class Checked(OnGaudi):
        def check(self):
            raise AssertionError("it counts on the devices")

    with pytest.raises(
        ConfigurationError,
        match=r"Checked trains on devices of type 'hpu' or 'cuda', and this run is on 'cpu'\. "
        r"Pass accelerator='hpu' or 'cuda', or leave the strategy to strategy='auto'",
    ):
        Fabric(strategy=Checked(), accelerator="cpu")


def test_one_of_the_types_is_taken():
    class OnBoth(OnGaudi):
        device_types = ("hpu", "cpu")

    assert Fabric(strategy=OnBoth(), accelerator="cpu").device.type == "cpu"
