"""Checkpoints that a run can't go on from: another optimizer's state, and files that no Trainer has
saved.
"""

import re

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader

import core
from core import Fabric
from core.checkpoint import load_checkpoint
from core.contract import CheckpointCorruptedError, CheckpointError
from support.small_nets import Net, batches, quiet_trainer

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def fit(optimizer, *, plugins=None, path=None, ckpt_path=None):
    class Trained(Net):
        def configure_optimizers(self):
            return optimizer(self.parameters(), lr=0.01)

        def on_train_end(self):
            if path is not None:
                self.trainer.save_checkpoint(path)

    net = Trained()
    weight = net.layer.weight.clone()
    trainer = quiet_trainer(max_epochs=1 if ckpt_path is None else 2, plugins=plugins)
    try:
        trainer.fit(net, DataLoader(torch.cat(batches()), batch_size=2), ckpt_path=ckpt_path)
    except CheckpointError:
        assert torch.equal(net.layer.weight, weight), "nothing is restored, and nothing trained"
        raise
    return net


@pytest.mark.parametrize("plugins", [None, "torch"])
@pytest.mark.parametrize(("saves", "loads"), [(SGD, ADAM), (ADAM, SGD), (ADAM, torch.optim.Adamax)])
def test_another_optimizer_is_named(tmp_path, plugins, saves, loads):
    path = tmp_path / "last.ckpt"
    fit(saves, plugins=plugins, path=path)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in (saves, loads)]
    assert load_checkpoint(path)["optimizers"][0]["class"] == names[0]
    match = re.escape(f"is of {names[0]}, and {names[1]} is to go on from it")
    with pytest.raises(CheckpointError, match=match):
        fit(loads, plugins=plugins, ckpt_path=path)


def test_a_relative_goes_on_and_both_are_named(tmp_path):
    fit(ADAM, path=tmp_path / "last.ckpt")
    with pytest.warns(
        UserWarning, match=r"is of torch\.optim\.adam\.Adam, and torch\.optim\.adamw\.AdamW goes on"
    ):
        fit(ADAMW, ckpt_path=tmp_path / "last.ckpt")


FOREIGN = {
    "weights": (
        Net().state_dict(),
        r"it has \['layer\.bias', 'layer\.weight'\]\. Load the state_dict in it into the module "
        r"before the run: "
        r"module\.load_state_dict\(core\.checkpoint\.load_checkpoint\('.*other\.pt'\)\); with "
        r"Fabric",
    ),
    "wrapped": (
        {"epoch": 3, "model_state_dict": Net().state_dict()},
        r"it has \['epoch', 'model_state_dict'\]\. Load the state_dict in it .*"
        r"load_checkpoint\('.*'\)\['model_state_dict'\]\)",
    ),
    "other": (
        {"note": 1},
        r"it has \['note'\]\. Read files of your own with torch\.load, and what Fabric saved",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_called_what_they_are(tmp_path, name):
    content, expected = FOREIGN[name]
    torch.save(content, tmp_path / "other.pt")
    for read in (lambda path: fit(SGD, ckpt_path=path), Net.load_from_checkpoint):
        with pytest.raises(
            CheckpointError, match=rf"is not a checkpoint of a Trainer: {expected}"
        ) as failure:
            read(tmp_path / "other.pt")
        assert not isinstance(failure.value, CheckpointCorruptedError)


@pytest.mark.parametrize("form", ["torch", "safetensors", "folder"])
def test_the_cure_for_weights_of_others_loads_them_from_any_form(tmp_path, form):
    path = str(tmp_path / "other.pt")
    weights = {"layer.weight": torch.full((1, 4), 3.0), "layer.bias": torch.full((1,), 4.0)}
    if form == "torch":
        torch.save({"model": weights}, path)
    elif form == "safetensors":
        save_file(weights, path)
    else:
        Fabric(accelerator="cpu").save(path, {"model": weights})
    with pytest.raises(CheckpointError, match=r"module\.load_state_dict") as failure:
        fit(SGD, ckpt_path=path)
    (cure,) = re.findall(r"module\.load_state_dict\(.*?\]\)", str(failure.value))
    module = Net()
    exec(cure, {"module": module, "core": core})  # as a reader would type it
    assert {name: value.tolist() for name, value in module.state_dict().items()} == {
        name: value.tolist() for name, value in weights.items()
    }
