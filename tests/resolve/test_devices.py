"""Every form of `devices` and `num_nodes`, on a fake accelerator with four devices."""

import numpy as np
import pytest
import torch

from core import ConfigurationError, DeviceError
from core.accelerators import CPUAccelerator
from core.resolve import resolve
from resolve.resolve_fakes import FourDevices, ManyDevices, decision


def devices_of(devices):
    resolution = resolve(accelerator=FourDevices(), strategy=ManyDevices(), devices=devices)
    return [device.index for device in resolution.strategy.parallel_devices]


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (1, [0]),
        ("4", [0, 1, 2, 3]),
        (" 2 ", [0, 1]),
        (np.int64(2), [0, 1]),
        (-1, [0, 1, 2, 3]),
        ("auto", [0, 1, 2]),  # this accelerator's own default
        ([1, 3], [1, 3]),
        (range(2), [0, 1]),
        ("1, 3", [1, 3]),
        ("2,", [2]),
        ([3], [3]),
    ],
)
def test_forms(devices, indices):
    assert devices_of(devices) == indices


@pytest.mark.parametrize(
    ("devices", "number", "reason"),
    [
        ("auto", 1, "auto: cpu takes 1"),
        (-1, CPUAccelerator.detect().count, "devices=-1 stands for all that are here"),
    ],
)
def test_automatic_is_one_process_on_a_cpu_and_all_is_one_a_core(devices, number, reason):
    resolution = resolve(accelerator="cpu", strategy=ManyDevices(), devices=devices)
    chosen = decision(resolution, "devices")
    assert (len(resolution.strategy.parallel_devices), chosen.reason) == (number, reason)


def test_of_many_devices_the_first_and_the_last_are_shown():
    resolution = resolve(accelerator="cpu", strategy=ManyDevices(), devices=10)
    chosen = decision(resolution, "devices")
    assert chosen.choice == "10 (indices 0, 1, 2, ..., 9)"


@pytest.mark.parametrize(
    ("devices", "problem", "cure"),
    [
        (0, "it asks for no device at all", "write accelerator='cpu', devices=1"),
        (-2, "only -1 means something", "-1 for all"),
        ("", "it is empty", "'auto'"),
        ("a", "'a' is not a whole number", "'1,3'"),
        ("²", "'²' is not a whole number", "'1,3'"),
        ("0,,1", "an index between two commas is missing", "'1,3'"),
        ("0-1,3", "ranges are not understood", "devices='0,1'"),
        ("3-0", "ranges are not understood", "devices='3,0'"),
        (2.0, "a float is none of these", "[1, 3]"),
        (True, "a bool is none of these", "[1, 3]"),
        (None, "a NoneType is none of these", "or 'auto'"),
        ([], "it names no device", "devices='auto'"),
        ([0, 0], "device 0 is named twice", "Name each device once"),
        ([-1], "-1 is not the index of a device", "write devices=-1, without a list"),
        ([0, -1], "-1 is not the index of a device", "Indices begin at 0"),
        ([True], "True is not the index of a device", "[1, 3]"),
        ({0, 1}, "a set is none of these", "[1, 3]"),
    ],
)
def test_malformed(devices, problem, cure):
    with pytest.raises(DeviceError) as caught:
        devices_of(devices)
    message = str(caught.value)
    assert message.startswith(f"devices={devices!r}: ")
    assert problem in message
    assert cure in message


@pytest.mark.parametrize("devices", [5, "0,4"])
def test_too_many(devices):
    with pytest.raises(DeviceError, match=r"device 4, but there are 4 here. Ask for at most 4"):
        devices_of(devices)


def test_names_of_devices_in_a_strategy():
    assert ManyDevices(parallel_devices=["cpu", torch.device("cuda", 1)]).parallel_devices == [
        torch.device("cpu"),
        torch.device("cuda:1"),
    ]
    with pytest.raises(
        DeviceError, match=r"'gpu' is not a device of torch. Expected .* or the name of one: 'cpu'"
    ):
        ManyDevices(parallel_devices=["gpu"])


@pytest.mark.parametrize("num_nodes", [0, 1.0, True, "2"])
def test_malformed_num_nodes(num_nodes):
    with pytest.raises(
        ConfigurationError, match=r"^num_nodes=.*expected a whole number of machines from 1"
    ):
        resolve(accelerator="cpu", num_nodes=num_nodes)
