"""Tensors without a shape, and URLs with quoted names."""

import re
import subprocess
import sys

import pytest
import torch

from core import CheckpointError, Fabric
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO, load_checkpoint, newest_valid


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("io", [TorchCheckpointIO, DistributedCheckpointIO])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_by_its_path(tmp_path, io, layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[io()])
    with pytest.raises(
        CheckpointError, match=r"state\['inputs'\] is a nested tensor, .* tensor\.unbind\(\) gives them"
    ):
        fabric.save(tmp_path / "c", {"inputs": nested})


@pytest.mark.slow
def test_a_file_with_a_jagged_tensor_is_inspected(tmp_path):
    path = tmp_path / "jagged.pt"
    torch.save({"x": torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged)}, path)
    # A process of its own: torch reads such a tensor where its compiler was imported, and other tests may have done so.
    command = [sys.executable, "-m", "core", "checkpoint", "inspect", path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^x +1 +8 B +float32 \(2\)$", done.stdout, re.MULTILINE), done.stdout


def test_a_url_of_a_file_has_its_spaces_in_per_cent(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    url = f"file://{tmp_path.as_posix()}/a%20b/c%20d"
    Fabric(accelerator="cpu", devices=1).save(url, {"a": 1})
    assert [path.name for path in folder.iterdir()] == ["c d"]
    assert load_checkpoint((folder / "c d").as_uri())["a"] == 1
    assert newest_valid(folder.as_uri()) == (folder / "c d").as_uri()
