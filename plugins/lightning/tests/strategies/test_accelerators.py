"""Accelerators under Lightning's names: a program's own in Lightning's form, and core's with
Lightning's methods.
"""

import pytest
import torch
from torch import nn

import core
from core.accelerators import CPUAccelerator
from core.registry import ACCELERATOR_REGISTRY


@pytest.fixture
def own(installed):
    """A kind of device that a program defines, on the CPU."""
    accelerators = installed("lightning.pytorch.accelerators")

    class OwnAccelerator(accelerators.Accelerator):
        here = True
        told = []  # of this test

        @staticmethod
        def name():
            return "own"

        def setup(self, trainer):
            super().setup(trainer)
            self.told.append(("trainer", trainer))

        def setup_device(self, device):
            self.told.append(("device", device))

        def teardown(self):
            self.told.append(("teardown",))

        @staticmethod
        def parse_devices(devices):
            return devices

        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("cpu")] * devices

        @staticmethod
        def auto_device_count():
            return 1

        @classmethod
        def is_available(cls):
            return cls.here

        def get_device_stats(self, device):
            return {"heat": 1.0}

    return OwnAccelerator


@pytest.mark.parametrize("devices", [1, "auto", -1])
def test_a_programs_own_trains(lit, own, devices):
    accelerator = own()
    trainer = lit.fit(lit.Plain(), accelerator=accelerator, devices=devices)
    assert (trainer.accelerator, accelerator.name, accelerator.name()) == (
        accelerator,
        "own",
        "own",
    )
    assert [one for one in own.told if one[0] == "trainer"] == [("trainer", trainer)]
    assert ("device", torch.device("cpu")) in own.told
    assert own.told[-1] == ("teardown",)
    assert accelerator.memory_stats(torch.device("cpu")) == {"heat": 1.0}


def test_one_that_is_not_here_is_an_error(lit, own):
    own.here = False
    with pytest.raises(core.DeviceError, match=r"OwnAccelerator.is_available\(\) is false"):
        lit.make_trainer(accelerator=own())


def test_devices_that_are_no_indices_are_an_error(lit, own):
    class Odd(own):
        @staticmethod
        def parse_devices(devices):
            return "own:0"

    with pytest.raises(
        core.ConfigurationError, match=r"Odd.parse_devices\(1\) returned 'own:0'. Expected indices"
    ):
        lit.make_trainer(accelerator=Odd())


def test_a_registered_one_has_its_name_and_auto_leaves_it(lit, installed, own):
    registry = installed("lightning.pytorch.accelerators").AcceleratorRegistry
    registry.register("own", own, description="of this test")
    try:
        assert isinstance(lit.make_trainer(accelerator="own").accelerator, own)
        assert not isinstance(lit.make_trainer(accelerator="auto").accelerator, own)
    finally:
        ACCELERATOR_REGISTRY.remove("own")


def test_cores_own_are_asked_as_lightnings_are(installed):
    accelerators = installed("lightning.pytorch.accelerators")
    assert accelerators.CPUAccelerator.is_available()
    assert accelerators.CPUAccelerator.auto_device_count() == 1
    assert accelerators.CPUAccelerator.get_parallel_devices(2) == [torch.device("cpu")] * 2
    assert accelerators.CUDAAccelerator.is_available() == torch.cuda.is_available()
    assert isinstance(accelerators.CPUAccelerator().get_device_stats(torch.device("cpu")), dict)
    for kind in (accelerators.Accelerator, accelerators.CPUAccelerator):
        assert isinstance(CPUAccelerator(), kind)
    assert not isinstance(CPUAccelerator(), accelerators.CUDAAccelerator)


def test_a_callback_logs_as_the_module_does(lit):
    class Logs(nn.Module, lit.pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            self.log("seen", 1.0)
            self.log_dict({"twice": 2.0})

    callback = Logs()
    trainer = lit.fit(lit.Plain(), max_steps=1, callbacks=callback)
    assert (trainer.callback_metrics["seen"], trainer.callback_metrics["twice"]) == (1, 2)
    assert not hasattr(callback, "log")
