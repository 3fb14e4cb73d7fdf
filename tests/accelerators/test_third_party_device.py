"""A vendor's device, as PrivateUse1 lets one in, known to torch only after the vendor's extension
was imported.
"""

import sys
import textwrap

import pytest
import torch

from core.accelerators import Absent, TorchDeviceAccelerator
from core.contract import DeviceError
from core_testing import programs


def test_a_vendors_device_is_driven_through_its_own_module(tmp_path):
    drives = """
import sys
import torch
from core.accelerators import Found, TorchDeviceAccelerator
from core.contract import DeviceError

class AcmeAccelerator(TorchDeviceAccelerator):
    device_type = "acme"
    extension = "torch_acme"

    @classmethod
    def detect(cls):
        return Found(2)

accelerator = AcmeAccelerator()
assert accelerator.name == "acme"
indices = accelerator.parse_devices([1])
assert "torch_acme" not in sys.modules, "detection imported the extension"
devices = accelerator.torch_devices(indices)
assert devices == [torch.device("acme", 1)], devices
accelerator.setup()
accelerator.setup_device(devices[0])
import torch_acme
assert torch_acme.current == [1]
assert accelerator.memory_stats(devices[0]) == {"allocated_bytes": 101.0}
assert accelerator.get_rng_state(devices[0]).tolist() == [1, 1, 1, 1]
accelerator.set_rng_state(torch.zeros(4, dtype=torch.uint8), devices[0])
assert accelerator.get_rng_state(devices[0]).tolist() == [0, 0, 0, 0]
assert TorchDeviceAccelerator.detect.__func__(AcmeAccelerator) == Found(2, priority=50)
try:
    accelerator.setup_device(torch.device("acme", 7))
except DeviceError as error:
    print(error)
"""
    extension = """
import types
import torch

torch.utils.rename_privateuse1_backend("acme")
current = [0]
states = {0: torch.zeros(4, dtype=torch.uint8), 1: torch.ones(4, dtype=torch.uint8)}

module = types.ModuleType("acme")
module.device_count = lambda: 2

def set_device(device):
    if device.index not in states:
        raise RuntimeError("acme error: invalid device ordinal")
    current[0] = device.index

module.set_device = set_device
module.memory_allocated = lambda device: 100 + device.index
module.get_rng_state = lambda device: states[device.index]
module.set_rng_state = lambda state, device: states.__setitem__(device.index, state)
torch._register_device_module("acme", module)
"""
    (tmp_path / "torch_acme.py").write_text(extension)
    program = f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}\n" + textwrap.dedent(
        drives
    )
    done = programs.run([sys.executable, "-c", program])
    assert done.stdout.startswith(
        "acme:7 is here, but can't be used: acme error: invalid device ordinal "
    ), done.stderr


class Unknown(TorchDeviceAccelerator):
    device_type = "nobodyknows"
    extension = "torch_nobodyknows"


def test_a_device_type_that_torch_does_not_know_is_absent():
    assert Unknown.detect() == Absent("this torch knows no device type 'nobodyknows'")


def test_a_missing_extension_is_named():
    with pytest.raises(
        DeviceError, match=r"'unknown' needs the module 'torch_nobodyknows'.*Install the vendor's"
    ):
        Unknown().torch_devices([0])


@pytest.mark.parametrize(
    "raises", ["OSError('libacme.so: no such file')", "AssertionError('built for torch 2.5')"]
)
def test_an_extension_that_breaks_is_named(tmp_path, monkeypatch, raises):
    """A vendor's module loads shared libraries, and compares versions, when it is imported."""
    (tmp_path / "torch_nobodyknows.py").write_text(f"raise {raises}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        DeviceError,
        match=r"'unknown' needs the module 'torch_nobodyknows'.* raised .*(libacme|2\.5)",
    ):
        Unknown().torch_devices([0])


def test_the_cpu_behind_the_generic_class():
    """torch has a module for the CPU too, so that the generic class can be seen at work in this
    process.
    """

    class Processor(TorchDeviceAccelerator):
        device_type = "cpu"

    accelerator, device = Processor(), torch.device("cpu", 0)
    accelerator.setup_device(device)
    accelerator.synchronize(device)
    accelerator.set_rng_state(torch.zeros(0, dtype=torch.uint8), device)
    assert Processor.detect().count == 1
    assert (accelerator.memory_stats(device), accelerator.get_rng_state(device)) == ({}, None)
