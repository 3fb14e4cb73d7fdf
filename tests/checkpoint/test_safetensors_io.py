"""Weights in one file that other programs read."""

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Fabric, Trainer
from core.checkpoint import SafetensorsCheckpointIO, load_checkpoint, verify_checkpoint
from core.contract import CheckpointCorruptedError, CheckpointError
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same
from support.small_nets import QUIET, Net


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.safetensors"


def save(state, path):
    save_state(path, state, SafetensorsCheckpointIO())


def save_and_load(state, path):
    save(state, path)
    return SafetensorsCheckpointIO().load_checkpoint(path, collectives=Alone())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.uint16,
    ],
    ids=str,
)
def test_every_format_comes_back(path, dtype):
    weights = {
        "w": torch.arange(6).reshape(2, 3).to(dtype),
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.ones(0, 2, dtype=dtype),
    }
    loaded = save_and_load({"model": weights}, path)["model"]
    assert_same({name: loaded[name] for name in weights}, weights)
    assert len(loaded) == len(weights)


def test_other_programs_read_it(path):
    state = {"model": {"a.weight": torch.ones(2)}, "epoch": 3, 4: {"lr": (0.1, None)}}
    loaded = save_and_load(state, path)
    assert loaded.pop("model")["a.weight"].tolist() == [1, 1]
    assert loaded == {"epoch": 3, 4: {"lr": (0.1, None)}}
    found = safetensors.torch.load_file(path)
    assert {name: value.tolist() for name, value in found.items()} == {"a.weight": [1, 1]}


def test_several_modules_keep_apart(path):
    state = {
        "model": {"w": torch.zeros(1)},
        "model.ema": {"w": torch.ones(1)},
        "critic": {"ema.w": torch.ones(2)},
    }
    loaded = save_and_load(state, path)
    assert {
        key: {name: value.tolist() for name, value in part.items()} for key, part in loaded.items()
    } == {
        "model": {"w": [0]},
        "model.ema": {"w": [1]},
        "critic": {"ema.w": [1, 1]},
    }


def test_what_others_have_written_is_the_model(path):
    safetensors.torch.save_file({"w": torch.ones(2)}, path)
    assert load_checkpoint(path)["model"]["w"].tolist() == [1, 1]


def test_views_and_tied_weights_are_written_each(path):
    whole = torch.arange(6.0)
    weights = {"head": whole[:2], "again": whole[:2], "turned": whole.view(2, 3).T}
    loaded = save_and_load({"model": weights}, path)["model"]
    assert {name: value.tolist() for name, value in loaded.items()} == {
        "head": [0, 1],
        "again": [0, 1],
        "turned": [[0, 3], [1, 4], [2, 5]],
    }


def test_fabric_saves_and_loads_modules(path):
    fabric = Fabric(accelerator="cpu", devices=1, plugins="safetensors")
    module = nn.Linear(2, 2)
    model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
    fabric.save(path, {"model": model, "epoch": 3})
    expected = module.weight.detach().clone()
    nn.init.zeros_(module.weight)
    assert fabric.load(path, {"model": model}) == {"epoch": 3}
    assert torch.equal(module.weight, expected)
    with pytest.raises(CheckpointError, match="has no 'optimizer'"):
        fabric.load(path, {"model": model, "optimizer": optimizer})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"epoch": 3, "optimizer": {"state": {}}},
            r"no weights to write .* none of \['epoch', 'optimizer'\]",
        ),
        ({"model": {}}, "no weights to write"),
        ({"model": {"w": torch.ones(1)}, "hook": print}, r"state\['hook'\] is a builtins"),
        ({"model": {"w": torch.ones(1, dtype=torch.complex128)}}, "can't be written"),
        ({"model": {"w": torch.ones(1, device="meta")}}, "on the meta device"),
    ],
)
def test_what_cannot_be_written_leaves_what_was_there(path, state, message):
    save({"model": {"w": torch.ones(1)}}, path)
    with pytest.raises(CheckpointError, match=message):
        save(state, path)
    assert load_checkpoint(path)["model"]["w"].tolist() == [1]


def test_what_is_no_such_file_is_named(path):
    path.write_bytes(b"not at all")
    with pytest.raises(
        CheckpointCorruptedError, match=r"weights\.safetensors' is not a file of safetensors"
    ):
        load_checkpoint(path)


def test_the_name_does_not_have_to_tell_what_it_is(tmp_path):
    path = tmp_path / "last.ckpt"
    save({"model": {"w": torch.ones(2)}, "epoch": 1}, path)
    assert load_checkpoint(path)["epoch"] == 1
    verify_checkpoint(path)


@pytest.mark.parametrize(
    "lost",
    [
        {"moment": torch.zeros(0), "step": 1},
        [torch.ones(1)],
        ({"a": np.ones(2)},),
        {"a": {"b": torch.ones(1)}},
    ],
)
def test_nothing_is_lost_without_a_word(path, lost):
    with pytest.raises(
        CheckpointError, match=r"'other' would be lost, with tensors .* save_weights_only=True"
    ):
        save({"model": {"w": torch.ones(2)}, "other": lost}, path)
    assert not path.exists()


def test_a_trainer_saves_weights_alone(path):
    trainer = Trainer(max_epochs=1, plugins="safetensors", **QUIET)
    net = Net()
    trainer.fit(net, DataLoader(torch.ones(4, 4), batch_size=2))
    trainer.save_checkpoint(path, weights_only=True)
    with pytest.raises(CheckpointError, match="would be lost"):
        trainer.save_checkpoint(path)
    assert torch.equal(Net.load_from_checkpoint(path).layer.weight, net.layer.weight)
