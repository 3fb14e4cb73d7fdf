"""The newest step in the memory of every node, and going on from it when processes are gone."""

import os
import stat
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.callbacks import MemoryCheckpoint, ModelCheckpoint
from core.checkpoint import load_checkpoint
from core.contract import ConfigurationError, UnsupportedError
from core.strategies import ParallelStrategy
from core_testing import in_one_process
from support.global_batches import QUIET, Net, close, data


class Crash(Callback):
    runs_last = True

    def __init__(self, step):
        self.step, self.count = step, 0

    def state_dict(self):
        return {"count": self.count}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.count += 1

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.step and not trainer.count_unfinished():
            trainer.strategy.barrier()
            raise RuntimeError("gone")


class Deep(Net):
    """More rows than ranks, in two layers, of which one has no rows for the last of three ranks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(
            nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2), nn.Linear(2, 1)
        ).double()


class Notes(Callback):
    """The step that a run begins with, and the weights that it ends with."""

    weights = None

    def on_train_start(self, trainer, module):
        self.began = trainer.global_step

    def on_train_end(self, trainer, module):
        parameters = [
            part.full_tensor() if hasattr(part, "full_tensor") else part
            for part in module.parameters()
        ]
        self.weights = torch.cat([part.detach().flatten() for part in parameters]).tolist()


def train(folder, memory, num_ranks=1, *, crash=None, others=(), strategy="ddp", **options):
    """Two epochs, from the memory if there is something; where each rank is a node, `memory` has a
    folder for each.
    """
    torch.manual_seed(1)
    rank = os.environ.get("RANK", "0")
    os.environ |= (
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": rank} if num_ranks > 1 else {}
    )
    notes = Notes()
    trainer = Trainer(
        **QUIET | {"max_epochs": 2, "global_batch_size": 12, "default_root_dir": folder} | options,
        callbacks=[*others, notes, MemoryCheckpoint(folder=memory[int(rank)]), Crash(crash)],
        devices=1,
        num_nodes=num_ranks,
        **({"strategy": strategy} if num_ranks > 1 else {}),
    )
    module = Net() if strategy == "ddp" else Deep()
    try:
        trainer.fit(module, DataLoader(data(), 3, shuffle=True), ckpt_path="last")
    except RuntimeError:  # where another rank was gone first, a lost connection
        if crash is None:
            raise
    return notes.weights, notes.began


def on_nodes(num_nodes, folder, memory, **options):
    """`train` on nodes of one rank each; what it returns on each."""
    return in_one_process(partial(train, folder, memory, num_nodes, **options), ranks=num_nodes)


def folders(tmp_path):
    """The memories of nodes."""
    memory = [tmp_path / name for name in ("first", "second", "third", "fourth")]
    for folder in memory:
        folder.mkdir()
    return memory


def test_a_lost_node_costs_no_step_that_was_kept(tmp_path):
    memory, root = folders(tmp_path), tmp_path / "run"
    whole, _ = train(tmp_path / "whole", memory)
    on_nodes(2, root, memory, crash=3)
    assert all(list(folder.rglob("step-000000000003.ckpt")) for folder in memory[:2])
    # The first node is lost. Of three that take its place one knows where the run stood, and tells
    # the others.
    on_nodes(3, root, [memory[2], memory[1], memory[3]], crash=5)
    # What one has missed, the others have.
    for path in memory[2].rglob("*step-000000000005.ckpt*"):
        path.rename(path.with_name(path.name.replace("5", "4")))
    assert train(root, memory[1:]) == (close(whole), 5)
    assert list(memory[1].iterdir()) == []  # nothing is left of a run that has ended


@pytest.mark.slow
def test_shards_of_a_lost_node_are_on_the_next_one(tmp_path):
    memory, root, options = (
        folders(tmp_path),
        tmp_path / "run",
        {"strategy": "fsdp", "enable_checkpointing": False},
    )
    whole, _ = train(tmp_path / "whole", memory, **options)
    on_nodes(2, root, memory, crash=3, **options)
    assert all(len(list(folder.rglob("*.note"))) == 2 for folder in memory[:2])
    # The first node is lost. Of three that take its place one has the shards of both, and each
    # takes what it needs.
    (weights, began), *_ = on_nodes(3, root, [memory[2], memory[1], memory[3]], **options)
    assert (weights, began) == (pytest.approx(whole, rel=0, abs=1e-10), 3)
    assert [list(folder.iterdir()) for folder in memory[1:]] == [[], [], []]


def test_a_newer_checkpoint_on_disk_comes_first(tmp_path):
    memory = folders(tmp_path)
    train(tmp_path, memory, crash=2)
    [kept] = memory[0].rglob("step-*.ckpt")
    # Two steps of four batches, as callbacks that are called later saw them too.
    assert load_checkpoint(kept)["callbacks"]["Crash"]["state"] == {"count": 8}
    os.utime(kept, (1, 1))
    saver = partial(ModelCheckpoint, tmp_path / "saved", every_n_train_steps=4)
    options = {"max_steps": 4, "global_batch_size": 12, "enable_checkpointing": True}
    Trainer(**QUIET | options, callbacks=saver()).fit(Net(), DataLoader(data(), 3))
    assert train(tmp_path, memory, others=[saver()], enable_checkpointing=True)[1] == 4


def test_a_damaged_one_is_passed_over(tmp_path):
    memory = folders(tmp_path)
    train(tmp_path, memory, crash=2)
    [kept] = memory[0].rglob("step-*.ckpt")
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert train(tmp_path, memory)[1] == 0


@pytest.fixture
def fit_in(tmp_path, monkeypatch):
    """A function that trains a step, and the folder that it keeps its states in, which is gone
    then.
    """
    seen = []

    class Look(Callback):
        def on_train_end(self, trainer, module):
            seen.extend(memory.iterdir())
            assert stat.S_IMODE(seen[0].stat().st_mode) == 0o700

    def fit(*others, **options):
        callbacks = [MemoryCheckpoint(), *others]
        trainer = Trainer(
            **QUIET | {"max_steps": 1}, default_root_dir=tmp_path, callbacks=callbacks
        )
        trainer.fit(Net(), DataLoader(data(), 3), **options)

    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("CORE_MEMORY_FOLDER", str(memory))
    fit(Look())
    return fit, seen[0]


@pytest.mark.parametrize("ckpt_path", [None, "last"])
def test_a_link_that_others_have_made_is_refused_and_left_alone(tmp_path, fit_in, ckpt_path):
    (fit, folder), mine = fit_in, tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    folder.symlink_to(mine)
    with pytest.raises(
        ConfigurationError, match=r"expected a folder of this user .* in which nobody else writes"
    ):
        fit(ckpt_path=ckpt_path)
    assert folder.is_symlink()
    assert (mine / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("ckpt_path", [None, "last"])
@pytest.mark.parametrize(("mode", "is_of_another"), [(0o777, False), (0o700, True)])
def test_a_folder_that_others_have_made_is_refused(
    fit_in, monkeypatch, ckpt_path, mode, is_of_another
):
    fit, folder = fit_in
    folder.mkdir()
    folder.chmod(mode)
    # the owner is another than who runs
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + is_of_another)
    with pytest.raises(
        ConfigurationError, match=r"expected a folder of this user .* in which nobody else writes"
    ):
        fit(ckpt_path=ckpt_path)
    assert folder.is_dir()


def test_shards_are_refused():
    class Sharded(ParallelStrategy):
        pass

    trainer = Trainer(**QUIET, strategy=Sharded(), devices=2, callbacks=MemoryCheckpoint())
    with pytest.raises(UnsupportedError, match="MemoryCheckpoint keeps a whole copy on each node"):
        trainer.fit(Net(), DataLoader(data(), 3))
