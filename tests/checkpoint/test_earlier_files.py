"""Checkpoints of each form that an earlier core has written are read by this one, and trained on
from.

A folder in `earlier` is what `earlier_program.py` has made with the core of that commit.
"""

from pathlib import Path

import pytest
import torch

from checkpoint import earlier_program
from core import Fabric
from core.checkpoint import load_checkpoint, verify_checkpoint
from core_testing import in_one_process
from support.same import assert_same

EARLIER = Path(__file__).with_name("earlier")
FOLDERS = [path for path in sorted(EARLIER.iterdir()) if path.is_dir()]
FORMS = (
    "folder",
    "folder-2-ranks",
    "file.ckpt",
    "file.safetensors",
    "trainer",
    "trainer-2-ranks",
    "trainer.ckpt",
)


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def earlier(request):
    return request.param


def trained(num_steps):
    model = earlier_program.net()
    earlier_program.train(model, earlier_program.adam(model.parameters()), num_steps)
    return model


def assert_close(model, expected):
    for (name, parameter), other in zip(
        model.named_parameters(), expected.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, other, msg=lambda text, name=name: f"{name}: {text}")


def test_every_form_is_there(earlier):
    assert sorted(path.name for path in earlier.iterdir() if path.name[0] != ".") == sorted(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_its_digests_are_right(earlier, form):
    verify_checkpoint(earlier / form)


@pytest.mark.parametrize("form", ["folder", "file.ckpt"])
def test_values_of_every_type_come_back(earlier, form):
    assert_same(load_checkpoint(earlier / form)["values"], earlier_program.values())


@pytest.mark.parametrize("form", ["folder", "folder-2-ranks", "file.ckpt"])
def test_a_fabric_trains_on(earlier, form):
    fabric = Fabric(accelerator="cpu")
    net = earlier_program.net()
    model, optimizer = fabric.setup(net, earlier_program.adam(net.parameters()))
    fabric.load(earlier / form, {"model": model, "optimizer": optimizer})
    assert_close(net, trained(earlier_program.STEPS))
    earlier_program.train(model, optimizer)
    assert_close(net, trained(2 * earlier_program.STEPS))


def test_safetensors_hold_the_weights_and_what_is_plain(earlier):
    loaded = load_checkpoint(earlier / "file.safetensors")
    net = earlier_program.net()
    net.load_state_dict(loaded["model"])
    assert_close(net, trained(earlier_program.STEPS))
    assert loaded["epoch"] == 3


def fitted():
    """Both epochs, in one run."""
    _, module = earlier_program.fit(1, 2)
    return module.net


@pytest.mark.parametrize("form", ["trainer", "trainer.ckpt", "trainer-2-ranks"])
def test_a_trainer_resumes(earlier, form):
    trainer, module = earlier_program.fit(1, 2, ckpt_path=earlier / form)
    assert (trainer.global_step, trainer.current_epoch) == (4, 2)
    assert_close(module.net, fitted())


def test_two_ranks_resume(earlier):
    path = earlier / "trainer-2-ranks"
    for trainer, module in in_one_process(earlier_program.fit, 2, 2, None, None, path):
        assert trainer.global_step == 4
        assert_close(module.net, fitted())
