"""The gathering of objects from all ranks on rank 0, by branches."""

import os

import pytest
import torch
import torch.distributed as dist

from core.checkpoint import DistributedCheckpointIO, load_checkpoint
from core.contract import CheckpointError
from core.strategies import group_collectives
from core.strategies.group_collectives import GroupCollectives
from core_testing import in_one_process


@pytest.mark.parametrize(("size", "fan", "most"), [(1, 3, 0), (3, 3, 2), (7, 3, 4), (9, 3, 4), (10, 3, 5)])
def test_rank_zero_hears_of_all_and_is_told_by_few(size, fan, most):
    told = []

    def one():
        rank = dist.get_rank()

        def gather_from(obj, others):
            if rank != others[0]:
                return dist.send_object_list([obj], others[0])
            found = [[obj], *([None] for _ in others[1:])]
            for box, other in zip(found[1:], others[1:], strict=True):
                dist.recv_object_list(box, other)
            if rank == 0:
                told.append(len(found) - 1)
            return [each for [each] in found]

        return group_collectives.gather_in_branches(f"from {rank}", rank, size, gather_from, fan)

    assert in_one_process(one, ranks=size) == [[f"from {rank}" for rank in range(size)], *[None] * (size - 1)]
    assert sum(told) == most


def save_in_branches(folder):
    """A save of four ranks in branches of two; then one in which rank 3 fails."""
    rank = dist.get_rank()
    collectives = GroupCollectives(dist.group.WORLD, {})
    assert collectives.gather_objects("x" * rank) == (["", "x", "xx", "xxx"] if rank == 0 else None)
    storage = DistributedCheckpointIO()
    storage.save_checkpoint({"value": torch.ones(3) * rank}, folder / "a", collectives=collectives)
    try:
        value = object() if rank == 3 else 1
        storage.save_checkpoint({"value": value}, folder / "b", collectives=collectives)
    except CheckpointError as error:
        return [str(error)]


def test_ranks_of_a_group_save_in_branches(tmp_path, monkeypatch):
    monkeypatch.setattr(group_collectives, "FAN", 2)
    errors = [error for [error] in in_one_process(save_in_branches, tmp_path, ranks=4)]
    assert all("object" in error for error in errors)
    assert all(error.startswith("On rank 3: ") for error in errors[:3])
    assert load_checkpoint(tmp_path / "a")["value"].tolist() == [0.0] * 3
    assert os.listdir(tmp_path) == ["a"]
