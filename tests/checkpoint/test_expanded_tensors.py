"""Tensors that show more values than a file holds, and the other forms in which torch writes
values.
"""

from collections import OrderedDict

import pytest
import torch

from core.checkpoint import load_checkpoint, load_mapped
from core.checkpoint.distributed_io import DistributedCheckpointIO
from core.checkpoint.single_file_io import SafetensorsCheckpointIO
from core.checkpoint.upkeep.conversion import convert_checkpoint


def test_a_mapped_file_is_read(tmp_path):
    path = tmp_path / "of-an-engine.pt"
    torch.save(torch.arange(3.0), path)
    assert load_mapped(path).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["folder", "weights.safetensors"])
def test_a_tensor_that_repeats_values_is_converted(tmp_path, name):
    path, target = tmp_path / "last.pt", tmp_path / name
    writer = (
        SafetensorsCheckpointIO() if name.endswith(".safetensors") else DistributedCheckpointIO()
    )
    torch.save({"model": {"w": torch.ones(2, 1).expand(2, 1000)}}, path)
    convert_checkpoint(path, target, writer)
    assert load_checkpoint(target)["model"]["w"].sum() == 2000


@pytest.mark.parametrize("is_new", [True, False])
def test_what_torch_writes_is_read(tmp_path, is_new):
    """All that it writes by calls, in both forms of its files."""
    path, table = tmp_path / "last.pt", torch.nn.Parameter(torch.zeros(1).expand(1 << 30))
    plain = [
        b"bytes",
        b"",
        bytearray(b"x"),
        {1, 2},
        1 + 2j,
        torch.Size([2]),
        torch.device("cpu", 0),
        2**300,
    ]
    state = {
        "table": table,
        "sparse": torch.eye(3).to_sparse(),
        "plain": plain,
        "ordered": OrderedDict(a=1),
    }
    torch.save(state, path, _use_new_zipfile_serialization=is_new)
    loaded = load_checkpoint(path)
    assert (loaded["plain"], loaded["ordered"]) == (plain, {"a": 1})
    assert loaded["table"].shape == table.shape
    assert loaded["sparse"].to_dense().equal(torch.eye(3))
