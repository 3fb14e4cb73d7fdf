"""Plain tensors that are parts of larger ones, as torch 2.15's `CheckpointableTensor` describes
them.
"""

import pytest
import torch
from torch import nn

from core import CheckpointError, Fabric
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core_testing import in_one_process
from support.checkpoint_collectives import save_state


def part(values, shape, there, here, sizes):
    """A tensor with the four attributes of the protocol: boxes of a tensor of such a shape."""
    tensor = torch.tensor(values, dtype=torch.float64)
    tensor.global_shape, tensor.global_offsets, tensor.local_offsets, tensor.local_sizes = (
        shape,
        there,
        here,
        sizes,
    )
    return tensor


def halves(rank):
    """Rows 0 and 1, or 2 and 3, of a column of four; each beside padding."""
    rows = [[2.0 * rank], [2.0 * rank + 1], [99.0]]
    return part(rows, (4, 1), ((2 * rank, 0),), ((0, 0),), ((2, 1),))


def test_parts_are_saved_and_loaded_in_boxes(tmp_path):
    def otherwise(rank):
        """The first and the last row, or those between, into a tensor that holds them in another
        order.
        """
        if rank == 0:
            return part(
                [[-1.0], [-1.0]], (4, 1), ((3, 0), (0, 0)), ((0, 0), (1, 0)), ((1, 1), (1, 1))
            )
        return part([[-1.0], [-1.0]], (4, 1), ((1, 0),), ((0, 0),), ((2, 1),))

    def save_and_load(io, path):
        fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2, plugins=[io])
        fabric.launch()
        rank = fabric.global_rank
        fabric.save(path, {"column": halves(rank), "plain": torch.ones(2)})
        fabric.barrier()
        state = {"column": torch.zeros(4, 1), "plain": torch.zeros(2)}
        fabric.load(path, state)  # gives whole ones, as of DTensors
        assert state["column"].flatten().tolist() == [0, 1, 2, 3]
        assert state["plain"].tolist() == [1, 1]
        boxes = {"column": otherwise(rank)}
        io.load_checkpoint(path, state=boxes, collectives=fabric.session.collectives)
        assert boxes["column"].flatten().tolist() == ([3, 0] if rank == 0 else [1, 2])

    in_one_process(save_and_load, DistributedCheckpointIO(), tmp_path / "saved")


def test_one_file_has_no_place_for_them(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"state\['column'\] is this rank's part of a tensor\. Save it with"
    ):
        save_state(tmp_path / "saved", {"column": halves(0)}, TorchCheckpointIO())
    assert not (tmp_path / "saved").exists()


def test_a_module_of_them_is_refused_by_name(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    layer = nn.Linear(1, 2, bias=False)
    layer.weight.global_shape, layer.weight.global_offsets = (4, 1), ((0, 0),)
    module = fabric.setup_module(layer)
    with pytest.raises(
        CheckpointError, match="'weight' is a rank's part of a tensor, which state_dict"
    ):
        fabric.save(tmp_path / "saved", {"module": module})
