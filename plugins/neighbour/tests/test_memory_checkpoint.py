"""The newest step in the memory of every node, and going on from it when processes are gone."""

import importlib.util
import os
import stat

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.callbacks import MemoryCheckpoint, ModelCheckpoint
from core.checkpoint import load_checkpoint
from core.contract import ConfigurationError, UnsupportedError
from core.strategies import ParallelStrategy
from support.global_batches import QUIET, Net, close, data
from support.resuming import on_ranks


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

    def __init__(self, dtype):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2), nn.Linear(2, 1)).to(dtype)
        self.format = dtype

    def training_step(self, batch, batch_idx):
        return super().training_step([part.to(self.format) for part in batch], batch_idx)

    def on_train_end(self):
        parameters = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in self.parameters()]
        self.whole = torch.cat([part.detach().flatten() for part in parameters]).tolist()


def train(folder, num_ranks=1, *, crash=None, memory=None, others=(), strategy="ddp", **options):
    """Two epochs, from the memory if there is something; where each rank is a node, `memory` has a folder for each."""
    torch.manual_seed(1)
    if memory is not None:
        os.environ["CORE_MEMORY_FOLDER"] = str(memory[int(os.environ.get("RANK", "0"))])
    began = []
    trainer = Trainer(
        **QUIET | {"max_epochs": 2, "global_batch_size": 12, "default_root_dir": folder} | options,
        callbacks=[*others, Begins(began), MemoryCheckpoint(), Crash(crash)],
        devices=1,
        num_nodes=num_ranks,
        **({"strategy": strategy} if num_ranks > 1 else {}),
    )
    module = Net() if strategy == "ddp" else Deep(torch.float32 if strategy == "deepspeed" else torch.float64)
    try:
        trainer.fit(module, DataLoader(data(), 3, shuffle=True), ckpt_path="last")
    except RuntimeError:  # where another rank was gone first, a lost connection
        if crash is None or not began:
            raise
    if strategy != "ddp":
        return getattr(module, "whole", None), began[0]
    weights = torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()
    return weights, began[0]


class Begins(Callback):
    def __init__(self, began):
        self.began = began

    def on_train_start(self, trainer, module):
        self.began.append(trainer.global_step)


def on_nodes(num_nodes, *args, **options):
    """`train` on nodes of one rank each; what it returns on each."""

    def one():
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": os.environ["RANK"]}
        return train(*args, num_ranks=num_nodes, **options)

    return on_ranks(num_nodes, one)


def folders(tmp_path):
    """The memories of nodes."""
    memory = [tmp_path / name for name in ("first", "second", "third", "fourth")]
    for folder in memory:
        folder.mkdir()
    return memory


def test_a_lost_node_costs_no_step_that_was_kept(tmp_path):
    memory = folders(tmp_path)
    whole = on_ranks(1, lambda: train(tmp_path / "whole", memory=memory))[0][0]
    root = tmp_path / "run"
    on_nodes(2, root, crash=3, memory=memory)
    assert all(list(folder.rglob("step-000000000003.ckpt")) for folder in memory[:2])
    # The first node is lost. Of three that take its place one knows where the run stood, and tells the others.
    on_nodes(3, root, crash=5, memory=[memory[2], memory[1], memory[3]])
    # What one has missed, the others have.
    for path in memory[2].rglob("*step-000000000005.ckpt*"):
        path.rename(path.with_name(path.name.replace("5", "4")))
    weights, began = on_ranks(1, lambda: train(root, memory=[memory[1]]))[0]
    assert (weights, began) == (close(whole), 5)
    assert list(memory[1].iterdir()) == []  # nothing is left of a run that has ended


@pytest.mark.slow
def test_shards_of_a_lost_node_are_on_the_next_one(tmp_path):
    importlib.import_module("core_fsdp.strategy")  # once, and not in each of the ranks that are forked
    memory, options = folders(tmp_path), {"strategy": "fsdp", "enable_checkpointing": False}
    whole = on_ranks(1, lambda: train(tmp_path / "whole", memory=memory, **options))[0][0]
    root = tmp_path / "run"
    on_nodes(2, root, crash=3, memory=memory, **options)
    assert all(len(list(folder.rglob("*.note"))) == 2 for folder in memory[:2])
    # The first node is lost. Of three that take its place one has the shards of both, and each takes what it needs.
    on_nodes(3, root, crash=5, memory=[memory[2], memory[1], memory[3]], **options)
    for folder in memory[1:]:
        [kept] = folder.glob("*/*")
        assert (kept.name, len(list(kept.glob(".*.note")))) == ("step-000000000005.ckpt", 2)
    # The next one is lost, and of what is left one copy of a shard has been damaged. It is on both.
    damaged = next(path for path in memory[3].rglob("*.data") if path.name[9:14] == "00001")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    (weights, began), _ = on_nodes(2, root, memory=[memory[1], memory[3]], **options)
    assert (weights, began) == (pytest.approx(whole, rel=0, abs=1e-10), 5)
    assert [list(folder.iterdir()) for folder in (memory[1], memory[3])] == [[], []]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("core_deepspeed") is None, reason="tox run -e deepspeed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # DeepSpeed uses parts of torch that are to go
def test_shards_of_deepspeed_are_kept_too(tmp_path):
    memory, options = folders(tmp_path), {"strategy": "deepspeed", "enable_checkpointing": False}
    whole = on_ranks(1, lambda: train(tmp_path / "whole", memory=memory, **options))[0][0]
    on_nodes(2, tmp_path / "run", crash=3, memory=memory, **options)
    (weights, began), _ = on_nodes(2, tmp_path / "run", memory=memory[1:], **options)
    assert (weights, began) == (pytest.approx(whole, rel=0, abs=1e-5), 3)  # in float32


def test_a_newer_checkpoint_on_disk_comes_first(tmp_path):
    memory = [tmp_path / "memory"]
    memory[0].mkdir()
    on_ranks(1, lambda: train(tmp_path, crash=2, memory=memory))
    [kept] = memory[0].rglob("step-*.ckpt")
    # Two steps of four batches, as callbacks that are called later saw them too.
    assert load_checkpoint(kept)["callbacks"]["Crash"]["state"] == {"count": 8}
    os.utime(kept, (1, 1))
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4)
    trainer = Trainer(
        **QUIET | {"max_steps": 4, "global_batch_size": 12, "enable_checkpointing": True}, callbacks=saver
    )
    trainer.fit(Net(), DataLoader(data(), 3))
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4)
    _, began = on_ranks(1, lambda: train(tmp_path, memory=memory, others=[saver], enable_checkpointing=True))[0]
    assert began == 4
    # A damaged one is passed over; without `last` everything begins anew.
    on_ranks(1, lambda: train(tmp_path / "other", crash=2, memory=memory))
    [kept] = memory[0].rglob("step-*.ckpt")
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert on_ranks(1, lambda: train(tmp_path / "other", memory=memory))[0][1] == 0


def folder_of_others(path, mine, kind):
    """What another user of the machine can make in the place of a run's folder."""
    if kind == "a link":
        path.symlink_to(mine)
    else:
        path.mkdir()
        path.chmod(0o777)


@pytest.mark.parametrize("kind", ["a link", "a folder for all"])
@pytest.mark.parametrize("ckpt_path", [None, "last"])
def test_a_folder_that_others_have_made_is_refused_and_left_alone(tmp_path, monkeypatch, kind, ckpt_path):
    def fit(*others, **options):
        callbacks = [MemoryCheckpoint(folder=memory), *others]
        trainer = Trainer(**QUIET | {"max_steps": 1}, default_root_dir=tmp_path, callbacks=callbacks)
        trainer.fit(Net(), DataLoader(data(), 3), **options)

    class Look(Callback):
        def on_train_end(self, trainer, module):
            [folder] = memory.iterdir()
            seen.append((folder, stat.S_IMODE(folder.stat().st_mode)))

    memory, mine, seen = tmp_path / "memory", tmp_path / "mine", []
    memory.mkdir()
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    fit(Look())
    [(folder, mode)] = seen
    assert mode == 0o700
    folder_of_others(folder, mine, kind)
    with pytest.raises(ConfigurationError, match=r"expected a folder of this user .* in which nobody else writes"):
        fit(ckpt_path=ckpt_path)
    assert os.path.lexists(folder)
    assert (mine / "notes.txt").read_text() == "mine"
    folder.unlink() if folder.is_symlink() else folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # the owner is another than who runs
    if os.path.lexists(folder):
        with pytest.raises(ConfigurationError, match="of this user"):
            fit(ckpt_path=ckpt_path)


def test_shards_are_refused():
    class Sharded(ParallelStrategy):
        pass

    trainer = Trainer(**QUIET, strategy=Sharded(), devices=2, callbacks=MemoryCheckpoint())
    with pytest.raises(UnsupportedError, match="MemoryCheckpoint keeps a whole copy on each node"):
        trainer.fit(Net(), DataLoader(data(), 3))
