"""What fails on one rank is raised on all of them, and nobody waits for ever."""

import os

import pytest
import torch

from core.checkpoint import TorchCheckpointIO
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from core.strategies import ParallelStrategy
from core_testing import Backend
from support.checkpoint_collectives import Alone


def run(function, folder, in_process=True):
    """Call `function(rank, collectives, path)` on two ranks."""
    Backend(ParallelStrategy, num_processes=2, in_process=in_process).run(_work, function, str(folder / "last.ckpt"))


def _work(rank, function, path):
    fabric = rank.fabric()
    fabric.barrier()
    function(rank.number, fabric.strategy.session.collectives, path)


def save_load_and_remove(rank, collectives, path):
    checkpoint_io = TorchCheckpointIO()
    checkpoint_io.save_checkpoint({"x": torch.ones(3)} if rank == 0 else None, path, collectives=collectives)
    assert checkpoint_io.load_checkpoint(path, collectives=collectives)["x"].tolist() == [1, 1, 1]
    checkpoint_io.remove_checkpoint(path, collectives=collectives)
    assert not os.path.exists(path)
    with pytest.raises(CheckpointNotFoundError):
        checkpoint_io.load_checkpoint(path, collectives=collectives)


def refuse_a_state(rank, collectives, path):
    with pytest.raises(CheckpointError, match=r"state\['x'\] is a builtins.object") as caught:
        TorchCheckpointIO().save_checkpoint({"x": object()} if rank == 0 else None, path, collectives=collectives)
    assert str(caught.value).startswith("On rank 0: ") == (rank == 1)


def lack_the_file_on_one_node(rank, collectives, path):
    """Each rank has a disk of its own, and the checkpoint of one is damaged."""
    own = f"{path}.{rank}"
    TorchCheckpointIO().save_checkpoint({"x": 1}, own, collectives=Alone())
    if rank == 1:
        with open(own, "ab") as file:
            file.write(b"!")
    with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt.1' is damaged") as caught:
        TorchCheckpointIO().load_checkpoint(own, collectives=collectives)
    assert str(caught.value).startswith("On rank 1: ") == (rank == 0)


@pytest.mark.parametrize("function", [save_load_and_remove, refuse_a_state, lack_the_file_on_one_node])
def test_ranks_agree(function, tmp_path):
    run(function, tmp_path)
