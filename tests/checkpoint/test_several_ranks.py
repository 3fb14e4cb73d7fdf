"""What fails on one rank is raised on all of them, and nobody waits for ever."""

import datetime
import os
import secrets
import time

import pytest
import torch
import torch.distributed
import torch.multiprocessing

from core.checkpoint import TorchCheckpointIO
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from support.checkpoint_collectives import Gloo


def run(function, folder):
    """Call `function(rank, collectives, folder)` on two ranks, copies of this process."""
    torch.multiprocessing.start_processes(
        _worker, (function, str(folder), secrets.token_hex(4)), nprocs=2, start_method="fork"
    )


def _worker(rank, function, folder, meeting):
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{meeting}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    try:
        function(rank, Gloo(), os.path.join(folder, "last.ckpt"))
    finally:
        torch.distributed.destroy_process_group()
        time.sleep(0.2)  # gloo's threads; an interpreter that ends before them aborts


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
    from support.checkpoint_collectives import Alone

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
