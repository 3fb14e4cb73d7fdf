"""Several ranks write one checkpoint, each its part; what fails on one is raised on all, and nobody
waits for ever.
"""

import os

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
)
from core.contract import CheckpointCorruptedError, CheckpointError, Chunk, ShardedLeaf
from core.strategies import ParallelStrategy
from core_testing import Backend
from support.checkpoint_collectives import save_state

WHOLE = torch.arange(7 * 4.0).reshape(7, 4)


def run(function, folder, in_process=True):
    """Call `function(rank, collectives, path)` on two ranks."""
    Backend(ParallelStrategy, num_processes=2, in_process=in_process).run(
        _work, function, str(folder / "last.ckpt")
    )


def _work(rank, function, path):
    fabric = rank.fabric()
    fabric.barrier()
    function(rank.number, fabric.strategy.session.collectives, path)


def placed(placement):
    return distribute_tensor(WHOLE, init_device_mesh("cpu", (2,)), [placement])


def test_dtensors_are_written_and_read(tmp_path):
    """Rows of uneven number, columns, and replicas; each read as every other."""

    def work(rank, collectives, path):
        checkpoint_io = DistributedCheckpointIO()
        for written in (Shard(0), Shard(1), Replicate()):
            state = {
                "w": placed(written),
                "plain": torch.full((2,), float(rank)),
                "rank": rank,
                "random": [] if rank else [1],
            }
            checkpoint_io.save_checkpoint(state, path, collectives=collectives)
            loaded = checkpoint_io.load_checkpoint(path, collectives=collectives)
            assert torch.equal(loaded["w"], WHOLE)
            assert loaded["plain"].tolist() == [0, 0], "what isn't sharded is rank 0's"
            assert (loaded["rank"], loaded["random"]) == (0, [1])
            for read in (Shard(0), Shard(1), Replicate()):
                target = placed(read) * 0
                loaded = checkpoint_io.load_checkpoint(
                    path, collectives=collectives, state={"w": target}
                )
                assert loaded["w"] is target
                assert torch.equal(target.full_tensor(), WHOLE)
        collectives.barrier()

    run(work, tmp_path)


def test_leaves_of_one_rank_each_are_written(tmp_path):
    def work(rank, collectives, path):
        leaves = {
            f"w{number}": ShardedLeaf(
                (5,), torch.float32, (Chunk((0,), (5,), torch.full((5,), 1.0 * number)),) * mine
            )
            for number in range(4)
            for mine in [int(number % 2 == rank)]
        }
        DistributedCheckpointIO().save_checkpoint(leaves, path, collectives=collectives)
        if rank == 0:
            assert len([name for name in os.listdir(path) if name.endswith(".data")]) == 2
            assert [
                load_checkpoint(path)[f"w{number}"].unique().tolist() for number in range(4)
            ] == [
                [0],
                [1],
                [2],
                [3],
            ]

    run(work, tmp_path)


def test_what_only_one_rank_has_wrong_is_refused(tmp_path):
    def work(rank, collectives, path):
        state = {"x": object() if rank else 1}
        with pytest.raises(CheckpointError, match=r"state\['x'\] is a builtins.object") as caught:
            DistributedCheckpointIO().save_checkpoint(state, path, collectives=collectives)
        assert str(caught.value).startswith("On rank 1: ") == (rank == 0)
        assert not os.path.exists(path)
        # Both have the first half: nobody the second.
        half = ShardedLeaf((4,), torch.float32, (Chunk((0,), (2,), torch.ones(2)),) * (rank == 0))
        with pytest.raises(
            CheckpointError, match="have 2 elements of tensors to save, and the state has 4"
        ):
            DistributedCheckpointIO().save_checkpoint({"x": half}, path, collectives=collectives)
        collectives.barrier()
        assert [name for name in os.listdir(os.path.dirname(path)) if "ckpt" in name] == []

    run(work, tmp_path)


def test_a_part_that_is_lacking_is_told_to_all(tmp_path):
    """A file of another rank's part that is gone is missed by the rank that needs it, and told to
    all.
    """

    def work(rank, collectives, path):
        checkpoint_io = DistributedCheckpointIO()
        checkpoint_io.save_checkpoint({"w": placed(Shard(0))}, path, collectives=collectives)
        (mine,) = [name for name in os.listdir(path) if name.endswith(f"{rank:05}.data")]
        if rank == 1:
            with open(f"{path}/{mine}", "r+b") as file:
                file.write(b"damage")
        collectives.barrier()
        target = placed(Shard(0)) * 0
        with pytest.raises(CheckpointCorruptedError, match=r"00001.data' is damaged") as caught:
            checkpoint_io.load_checkpoint(path, collectives=collectives, state={"w": target})
        assert str(caught.value).startswith("On rank 1: ") == (rank == 0)
        # The other rank's part is whole, and of a state that nobody has.
        assert caught.value.overwritten
        target.to_local().zero_()
        checkpoint_io.verifies_first = True
        with pytest.raises(CheckpointCorruptedError, match=r"00001.data' is damaged") as caught:
            checkpoint_io.load_checkpoint(path, collectives=collectives, state={"w": target})
        assert not caught.value.overwritten
        assert not target.to_local().any(), "damage on one rank leaves all as they were"
        # What can't be loaded on one rank is so by default, too, as long as it has no need of the
        # bytes to know.
        checkpoint_io.verifies_first = False
        whole = f"{path}.whole"
        checkpoint_io.save_checkpoint({"w": placed(Shard(0))}, whole, collectives=collectives)
        unfit = torch.zeros(1, 2, 3) if rank == 1 else target
        with pytest.raises(CheckpointError, match="has shape") as caught:
            checkpoint_io.load_checkpoint(whole, collectives=collectives, state={"w": unfit})
        assert not caught.value.overwritten
        assert not target.to_local().any()

    run(work, tmp_path)


def test_ranks_save_in_the_background(tmp_path):
    """Training goes on and communicates while both ranks write, and removals keep their order."""

    def work(rank, collectives, path):
        checkpoint_io = AsyncCheckpointIO()
        weight = placed(Shard(0))
        for step in range(5):
            state = {"w": weight * 1, "step": step, "mine": torch.full((3,), float(rank))}
            checkpoint_io.save_checkpoint(state, f"{path}.{step}", collectives=collectives)
            state["w"].to_local().zero_()
            if step:
                checkpoint_io.remove_checkpoint(f"{path}.{step - 1}", collectives=collectives)
            for _ in range(20):
                collectives.broadcast_object(step)
        loaded = checkpoint_io.load_checkpoint(f"{path}.4", collectives=collectives)
        assert torch.equal(loaded["w"], WHOLE)
        assert (loaded["step"], loaded["mine"].tolist()) == (4, [0, 0, 0])
        assert [name for name in os.listdir(os.path.dirname(path)) if "ckpt" in name] == [
            "last.ckpt.4"
        ]
        blocked = f"{os.path.dirname(path)}/blocked"
        with open(blocked, "w"):
            pass
        checkpoint_io.save_checkpoint(
            {"x": torch.ones(1)}, f"{blocked}/last.ckpt", collectives=collectives
        )
        with pytest.raises(CheckpointError, match="can't be written: File exists"):
            checkpoint_io.save_checkpoint({"x": torch.ones(1)}, path, collectives=collectives)
        checkpoint_io.teardown()
        collectives.barrier()

    run(work, tmp_path, in_process=False)


def test_a_state_of_rank_0_is_refused(tmp_path):
    def work(rank, collectives, path):
        with pytest.raises(CheckpointError, match=r"state\['x'\] is a builtins.object") as caught:
            TorchCheckpointIO().save_checkpoint(
                {"x": object()} if rank == 0 else None, path, collectives=collectives
            )
        assert str(caught.value).startswith("On rank 0: ") == (rank == 1)

    run(work, tmp_path)


def test_a_file_that_one_node_lacks_is_told_to_all(tmp_path):
    """Each rank has a disk of its own, and the checkpoint of one is damaged."""

    def work(rank, collectives, path):
        own = f"{path}.{rank}"
        save_state(own, {"x": 1}, TorchCheckpointIO())
        if rank == 1:
            with open(own, "ab") as file:
                file.write(b"!")
        with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt.1' is damaged") as caught:
            TorchCheckpointIO().load_checkpoint(own, collectives=collectives)
        assert str(caught.value).startswith("On rank 1: ") == (rank == 0)

    run(work, tmp_path)


def test_one_process_reads_what_two_wrote_and_the_other_way_round(tmp_path):
    def read_rows(rank, collectives, path):
        target = placed(Shard(0)) * 0
        path = path.replace("last", "one")
        DistributedCheckpointIO().load_checkpoint(
            path, collectives=collectives, state={"w": target}
        )
        assert torch.equal(target.full_tensor(), WHOLE)

    def write_rows(rank, collectives, path):
        DistributedCheckpointIO().save_checkpoint(
            {"w": placed(Shard(0))}, path, collectives=collectives
        )

    run(write_rows, tmp_path)
    assert torch.equal(load_checkpoint(tmp_path / "last.ckpt")["w"], WHOLE)
    save_state(tmp_path / "one.ckpt", {"w": WHOLE})
    run(read_rows, tmp_path)
