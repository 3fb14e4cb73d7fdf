"""The newest step in the memory of every node, and going on from it when processes are gone."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.callbacks import MemoryCheckpoint, ModelCheckpoint
from core.contract import UnsupportedError
from core.strategies import ParallelStrategy
from global_batches import QUIET, Net, close, data
from resuming import on_ranks


class Crash(Callback):
    runs_last = True

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and not trainer.count_unfinished():
            trainer.strategy.barrier()
            raise RuntimeError("gone")


def train(folder, num_ranks=1, *, crash=None, memory=None, others=(), **options):
    """Two epochs, from the memory if there is something; where each rank is a node, `memory` has a folder for each."""
    torch.manual_seed(1)
    if memory is not None:
        os.environ["CORE_MEMORY_FOLDER"] = str(memory[int(os.environ.get("RANK", "0"))])
    began = []
    trainer = Trainer(
        **QUIET | {"max_epochs": 2, "global_batch_size": 12, "default_root_dir": folder} | options,
        callbacks=[*others, Begins(began), MemoryCheckpoint(), *([Crash(crash)] if crash else [])],
        devices=1,
        num_nodes=num_ranks,
        **({"strategy": "ddp"} if num_ranks > 1 else {}),
    )
    module = Net()
    try:
        trainer.fit(module, DataLoader(data(), 3, shuffle=True), ckpt_path="last")
    except RuntimeError:  # where another rank was gone first, a lost connection
        if crash is None or not began:
            raise
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


def test_a_lost_node_costs_no_step_that_was_kept(tmp_path):
    memory = [tmp_path / name for name in ("first", "second", "third", "fourth")]
    for folder in memory:
        folder.mkdir()
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


def test_a_newer_checkpoint_on_disk_comes_first(tmp_path):
    memory = [tmp_path / "memory"]
    memory[0].mkdir()
    on_ranks(1, lambda: train(tmp_path, crash=2, memory=memory))
    [kept] = memory[0].rglob("step-*.ckpt")
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


def test_shards_are_refused():
    class Sharded(ParallelStrategy):
        pass

    trainer = Trainer(**QUIET, strategy=Sharded(), devices=2, callbacks=MemoryCheckpoint())
    with pytest.raises(UnsupportedError, match="MemoryCheckpoint keeps a whole copy on each node"):
        trainer.fit(Net(), DataLoader(data(), 3))
