"""Colossal-AI's own layout: written by its Booster, and read by its Booster, by core, and by every
other strategy.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    Fabric,
    Module,
    Trainer,
)
from core.checkpoint import TorchCheckpointIO
from core.checkpoint.upkeep.conversion import convert_checkpoint
from core.strategies import ColossalAIStrategy
from core_colossalai import ColossalAICheckpointIO, library
from core_colossalai.conformance import TestColossalAI as Imported
from core_testing.ranks import QUIET

assert Imported  # Colossal-AI is imported there, once for all ranks
NUM_BATCHES, BATCH_SIZE = 6, 8


class Net(Module):
    """Tied weights, frozen ones, two groups; saves after the third step. The losses of all ranks
    are in a buffer.
    """

    def __init__(self, path=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 1))
        self.layers[2].weight = self.layers[0].weight
        self.layers[2].bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(1.5))
        self.register_buffer("losses", torch.zeros(NUM_BATCHES, dtype=torch.float64))
        self.path = path

    def training_step(self, batch, batch_idx):
        return (self.layers(batch[0]) * self.scale - batch[1]).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses[batch_idx] = self.trainer.strategy.reduce(outputs)
        if self.path is not None and self.trainer.global_step == 3:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self):
        weights = [self.layers[0].weight, self.layers[3].weight]
        biases = [own for name, own in self.named_parameters() if name.endswith("bias")]
        return torch.optim.AdamW([{"params": weights}, {"params": biases, "lr": 0.005}], lr=0.02)


def native():
    return ColossalAIStrategy(start_method="fork", colossalai_checkpoint="native")


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, **(tolerance or {"rtol": 0, "atol": 0}))


def test_a_run_goes_on_here_and_elsewhere(tmp_path):
    def fit(strategy, num_processes, *, path=None, ckpt_path=None):
        """The module's state, with the losses of all steps."""
        module = Net(path)
        trainer = Trainer(
            strategy=strategy, accelerator="cpu", devices=num_processes, max_epochs=1, **QUIET
        )
        inputs = torch.randn(
            NUM_BATCHES * BATCH_SIZE, 5, generator=torch.Generator().manual_seed(1)
        )
        targets = inputs.sum(1, keepdim=True).sin()
        trainer.fit(
            module,
            DataLoader(TensorDataset(inputs, targets), BATCH_SIZE // num_processes),
            ckpt_path=ckpt_path,
        )
        return module.state_dict()

    path, whole = tmp_path / "native", tmp_path / "whole.pt"
    expected = fit(native(), 2, path=path)
    assert expected["losses"][-1] < expected["losses"][0]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["native"]
    same(expected, fit(native(), 2, ckpt_path=path))

    convert_checkpoint(path, whole, TorchCheckpointIO(), reader=ColossalAICheckpointIO())
    same(expected, fit("single_device", 1, ckpt_path=whole), rtol=1e-5, atol=1e-6)
    same(expected, fit(native(), 2, ckpt_path=whole))


@pytest.fixture
def fabric():
    """In one process, in the native layout."""
    strategy = ColossalAIStrategy(colossalai_checkpoint="native")
    made = Fabric(strategy=strategy, accelerator="cpu", devices=1)
    made.launch()
    yield made
    made.teardown()


def trained(fabric, seed=0, width=4):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))
    model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        fabric.backward(model(torch.ones(2, 3)).square().sum())
        optimizer.step()
    return module, {"model": model, "optimizer": optimizer, "step": seed}


def test_colossalai_reads_what_it_has_written(fabric, tmp_path):
    """By a Booster without core, around the user's own class; and torch alone finds the user's
    names.
    """
    module, state = trained(fabric)
    fabric.save(tmp_path / "native", state)
    weights = torch.load(tmp_path / "native" / "modeling" / "pytorch_model-00001.bin")
    assert list(weights) == ["0.weight", "0.bias", "1.weight", "1.bias"]

    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    booster, adam = (
        library.booster("torch_ddp", {}, "cpu"),
        torch.optim.Adam(other.parameters(), lr=0.5),
    )
    model, optimizer = library.boost(booster, other, adam)
    booster.load_model(model, str(tmp_path / "native" / "modeling"))
    booster.load_optimizer(optimizer, str(tmp_path / "native" / "optimizer"))
    same(module.state_dict(), other.state_dict())
    assert adam.param_groups[0]["lr"] == 0.1
    same(state["optimizer"].optimizer.state_dict()["state"][0], adam.state_dict()["state"][0])


def test_only_what_is_named_is_restored(fabric, tmp_path):
    module, state = trained(fabric)
    fabric.save(tmp_path / "native", state)
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    other, again = trained(fabric, seed=1)
    before = again["optimizer"].optimizer.state_dict()["state"][0]["exp_avg"].clone()
    assert fabric.load(tmp_path / "native", {"model": again["model"]}, strict=False)["step"] == 0
    same(saved, other.state_dict())
    assert torch.equal(again["optimizer"].optimizer.state_dict()["state"][0]["exp_avg"], before)


def test_it_replaces_one_and_leaves_else_alone(fabric, tmp_path, monkeypatch):
    def load_whole(path):
        return ColossalAICheckpointIO().load_checkpoint(path, collectives=None)

    _, state = trained(fabric)
    path = tmp_path / "new" / "native"
    fabric.save(path, state)
    fabric.save(path, {**state, "step": 7})
    assert load_whole(path)["step"] == 7
    monkeypatch.setattr("core_colossalai.native._optimizer", lambda *_: 1 / 0)
    with pytest.raises(
        CheckpointError,
        match="Rank 0 can't write a checkpoint in Colossal-AI's layout: ZeroDivision",
    ):
        fabric.save(path, {**state, "step": 8})
    assert load_whole(path)["step"] == 7
    assert [entry.name for entry in path.parent.iterdir()] == ["native"]
    with pytest.raises(CheckpointError, match=r"is no Colossal-AI checkpoint, and stays as it is"):
        fabric.save(path.parent, state)
    with pytest.raises(CheckpointError, match="writes to local paths only"):
        fabric.save("s3://bucket/native", state)


def test_what_does_not_fit_is_named(fabric, tmp_path):
    """Colossal-AI's own loader leaves a weight of another shape out, without a word."""
    _, state = trained(fabric)
    fabric.save(tmp_path / "native", state)
    module, wider = trained(fabric, width=5)
    model, _ = library.boost(library.booster("torch_ddp", {}, "cpu"), module, None)
    # no error
    fabric.strategy.own_booster().load_model(model, str(tmp_path / "native" / "modeling"))
    with pytest.raises(
        CheckpointError, match=r"Of another shape are '0\.weight', \(4, 3\) saved and \(5, 3\) here"
    ):
        fabric.load(tmp_path / "native", wider)


def test_damage_is_found(fabric, tmp_path):
    _, state = trained(fabric)
    path = tmp_path / "native"
    with pytest.raises(CheckpointNotFoundError, match=r"No checkpoint.*is at|native"):
        fabric.load(path, state)
    fabric.save(path, state)
    for name, damage in {
        "optimizer": lambda file: file.write_bytes(file.read_bytes()[:200]),
        "modeling/pytorch_model-00001.bin": lambda file: file.unlink(),
        "core.pt": lambda file: file.write_bytes(file.read_bytes().replace(b"step", b"stop")),
    }.items():
        file = path / name
        content = file.read_bytes()
        damage(file)
        with pytest.raises(CheckpointCorruptedError, match=file.name):
            fabric.load(path, state)
        file.write_bytes(content)
    assert fabric.load(path, state) == {}


def test_what_contradicts_it_is_refused():
    with pytest.raises(
        ConfigurationError, match="colossalai_checkpoint='own': expected 'canonical' or 'native'"
    ):
        ColossalAIStrategy(colossalai_checkpoint="own")
    both = ColossalAIStrategy(colossalai_checkpoint="native", checkpoint_io=TorchCheckpointIO())
    with pytest.raises(ConfigurationError, match="TorchCheckpointIO was given to write them"):
        Fabric(strategy=both, accelerator="cpu", devices=1)
