"""The gathering of objects from all ranks on rank 0, by branches."""

import pytest
import torch.distributed as dist

from core.strategies import group_collectives
from core.strategies.group_collectives import GroupCollectives
from core_testing import in_one_process


@pytest.mark.parametrize(
    ("size", "fan", "most"), [(1, 3, 0), (3, 3, 2), (7, 3, 4), (9, 3, 4), (10, 3, 5)]
)
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

    assert in_one_process(one, ranks=size) == [
        [f"from {rank}" for rank in range(size)],
        *[None] * (size - 1),
    ]
    assert sum(told) == most


def test_ranks_of_a_group_gather_in_branches(monkeypatch):
    monkeypatch.setattr(group_collectives, "FAN", 2)

    def gather():
        return GroupCollectives(dist.group.WORLD, {}).gather_objects("x" * dist.get_rank())

    assert in_one_process(gather, ranks=4) == [["", "x", "xx", "xxx"], None, None, None]
