import os
import random
import sys
from collections import Counter

import numpy as np
import pytest
import torch

import core
from core import Fabric
from core.accelerators import CPUAccelerator
from core.checkpoint import TorchCheckpointIO, collect_random_state, restore_random_state
from core.session import half_loaded
from support.checkpoint_collectives import Alone, save_state

CPU = torch.device("cpu")


class DeviceWithGenerator(CPUAccelerator):
    """A device whose generator is its own."""

    def __init__(self, size=16):
        self.state = torch.zeros(size, dtype=torch.uint8)

    def get_rng_state(self, device):
        return self.state.clone()

    def set_rng_state(self, state, device):
        self.state = state.clone()


def draw():
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        *torch.rand(2).tolist(),
    ]


@pytest.mark.parametrize("burn", [0, 3])
def test_every_generator_goes_on_where_it_was(tmp_path, burn):
    accelerator = DeviceWithGenerator()
    for _ in range(burn):
        draw()
    state = collect_random_state(accelerator, CPU)
    expected = draw()
    accelerator.state += 1

    path = tmp_path / "last.ckpt"
    save_state(path, state, TorchCheckpointIO())
    loaded = TorchCheckpointIO().load_checkpoint(path, collectives=Alone())
    restore_random_state(loaded, accelerator, CPU)
    assert draw() == expected
    assert accelerator.state.tolist() == [0] * 16


def test_another_kind_of_device_restores_what_they_share():
    state = collect_random_state(DeviceWithGenerator(), CPU)
    expected = draw()
    other = DeviceWithGenerator(size=8)
    other.state += 5
    restore_random_state(state, other, CPU)
    assert draw() == expected
    assert other.state.tolist() == [5] * 8
    restore_random_state(state, CPUAccelerator(), CPU)
    assert draw() == expected


def test_a_storage_that_knows_no_tuples_will_do():
    state = collect_random_state(CPUAccelerator(), CPU)
    expected = draw()
    version, words, gauss = state["python"]
    restore_random_state({**state, "python": [version, list(words), gauss]}, CPUAccelerator(), CPU)
    assert draw() == expected


@pytest.mark.parametrize("storage", ["torch", "distributed"])
def test_a_random_state_is_saved_in_one_go(tmp_path, storage):
    """No function of core is called for each of its 625 integers."""
    of_core = os.path.join(os.path.dirname(core.__file__), "")
    fabric = Fabric(accelerator="cpu", devices=1, plugins=storage)
    model = fabric.setup(torch.nn.Linear(1, 1))
    # which saves look out for
    half_loaded.mark(fabric.session, {"model": model.module}, "a damaged one")
    fabric.save(tmp_path / "first", {})  # imports what saving needs
    called = []

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(of_core):
            called.append(
                frame.f_code.co_qualname
                if hasattr(frame.f_code, "co_qualname")
                else frame.f_code.co_name
            )

    sys.setprofile(watch)
    try:
        fabric.save(tmp_path / "last", {"random": random.getstate()})
    finally:
        sys.setprofile(None)
    often = {name: number for name, number in Counter(called).items() if number >= 60}
    assert not often
