"""Tensors without a shape, and URLs with quoted names."""

import pytest
import torch

from core import CheckpointError, Fabric
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO, load_checkpoint, newest_valid


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("io", [TorchCheckpointIO, DistributedCheckpointIO])
def test_a_nested_tensor_is_refused_by_its_path(tmp_path, io):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[io()])
    with pytest.raises(
        CheckpointError, match=r"state\['inputs'\] is a nested tensor, .* tensor\.unbind\(\) gives them"
    ):
        fabric.save(tmp_path / "c", {"inputs": nested})


def test_a_url_of_a_file_has_its_spaces_in_per_cent(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    url = f"file://{tmp_path.as_posix()}/a%20b/c%20d"
    Fabric(accelerator="cpu", devices=1).save(url, {"a": 1})
    assert [path.name for path in folder.iterdir()] == ["c d"]
    assert load_checkpoint((folder / "c d").as_uri())["a"] == 1
    assert newest_valid(folder.as_uri()) == (folder / "c d").as_uri()
