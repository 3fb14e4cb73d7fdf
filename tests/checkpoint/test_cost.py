"""What it takes to read a file of a stranger's is bounded by what the file holds."""

import io
import pickle
import zipfile
from _codecs import encode
from collections import OrderedDict

import pytest
import torch

from checkpoint.damaged_on_purpose import bounded_memory
from core.checkpoint import load_checkpoint, load_mapped
from core.checkpoint.distributed_io import DistributedCheckpointIO
from core.checkpoint.safetensors_io import SafetensorsCheckpointIO
from core.checkpoint.upkeep.conversion import convert_checkpoint
from core.checkpoint.upkeep.listing import list_checkpoints
from core.checkpoint.upkeep.summary import summarize
from core.contract import CheckpointCorruptedError, CheckpointError

GIB = 1 << 30


class Pickled:
    """Pickled as a call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def in_hexadecimal(times):
    value = Pickled(encode, ("x" * 64, "latin1"))
    for _ in range(times):
        value = Pickled(encode, (value, "hex"))
    return value


def again_and_again():
    numbers = list(range(20000))
    return [Pickled(set, (numbers,)) for _ in range(4000)]


def expanded_rows():
    """A tensor of no entries, whose index of rows is one number, a billion times."""
    rows, none = torch.zeros(1, dtype=torch.int64).expand(GIB + 1), torch.zeros(0)
    layout = Pickled(torch.serialization._get_layout, ("torch.sparse_csr",))
    return Pickled(torch._utils._rebuild_sparse_tensor, (layout, (rows, none.long(), none, torch.Size((GIB, 1)))))


def compressed(path):
    """A file whose tensor is a gigabyte of zeros, as no torch writes it."""

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.ByteStorage, "0", "cpu", GIB) if isinstance(value, Storage) else None

    content, arguments = io.BytesIO(), (Storage(), 0, (GIB,), (1,), False, OrderedDict())
    Pickler(content, 2).dump({"x": Pickled(torch._utils._rebuild_tensor_v2, arguments)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", content.getvalue())
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
        with archive.open("archive/data/0", "w", force_zip64=True) as part:
            for _ in range(256):
                part.write(bytes(GIB // 256))


VALUES = {
    "a bytearray of a size": lambda: Pickled(bytearray, (3 * GIB,)),
    "bytes of a size": lambda: Pickled(bytes, (3 * GIB,)),
    "by a subclass": lambda: Pickled(torch._tensor._rebuild_from_type_v2, (bytearray, torch.Tensor, (3 * GIB,), {})),
    "a tensor of a size": lambda: Pickled(torch.FloatTensor, (GIB,)),
    "a storage of a size": lambda: Pickled(torch.FloatStorage, (GIB,)),
    "text in hexadecimal": lambda: in_hexadecimal(26),
    "one list in many sets": again_and_again,
    "an expanded index": expanded_rows,
}


@pytest.mark.parametrize("old_form", [False, True])
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_calls_that_make_more_than_the_file_holds_are_refused_before_they_are_made(tmp_path, make, old_form):
    path = tmp_path / "last.pt"
    torch.save({"x": make()}, path, _use_new_zipfile_serialization=not old_form)
    refused_by_all_that_read(path)


def test_parts_that_are_compressed_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "last.pt"
    compressed(path)
    refused_by_all_that_read(path)


def refused_by_all_that_read(path):
    with bounded_memory(path.stat().st_size * 64 + (256 << 20)):
        for read in (load_checkpoint, summarize, convert):
            with pytest.raises(CheckpointCorruptedError, match=r"last\.pt' is not a checkpoint that can be loaded"):
                read(path)
        with pytest.raises(CheckpointCorruptedError, match=r"last\.pt' is missing or damaged"):
            load_mapped(path)
        with pytest.warns(UserWarning, match="no digest"):
            assert [listed.state for listed in list_checkpoints(path.parent, verify=True)] == ["damaged"]


def convert(path):
    convert_checkpoint(path, path.with_name("folder"), DistributedCheckpointIO())


@pytest.mark.parametrize(
    "tensor", [torch.zeros(1).expand(1 << 40), torch.zeros(3, device="meta"), torch.eye(3).to_sparse()]
)
def test_a_mapped_file_has_no_tensor_that_shows_more_than_it_holds(tmp_path, tensor):
    path = tmp_path / "of-an-engine.pt"
    torch.save({"state": {0: {"w": tensor}}}, path)
    with pytest.raises(
        CheckpointCorruptedError, match=r"pt' is missing or damaged: .*'state\.0\.w' of shape .* no dense"
    ):
        load_mapped(path)
    torch.save(torch.arange(3.0), path)
    assert load_mapped(path).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["folder", "weights.safetensors"])
def test_a_tensor_that_repeats_one_value_is_not_written_at_full_size(tmp_path, name):
    path, target = tmp_path / "last.pt", tmp_path / name
    writer = SafetensorsCheckpointIO() if name.endswith(".safetensors") else DistributedCheckpointIO()
    torch.save({"model": {"w": torch.zeros(1).expand(1 << 40)}}, path)
    assert load_checkpoint(path)["model"]["w"].shape == (1 << 40,)
    with pytest.raises(CheckpointError, match=r"'model\.w' alone, of shape \(1099511627776,\), would be wri"):
        convert_checkpoint(path, target, writer)
    assert not target.exists()
    torch.save({"model": {"w": torch.ones(2, 1).expand(2, 1000)}}, path)
    convert_checkpoint(path, target, writer)
    assert load_checkpoint(target)["model"]["w"].sum() == 2000


def test_what_torch_writes_is_read(tmp_path):
    """All that it writes by calls, in both forms of its files."""
    path, table = tmp_path / "last.pt", torch.nn.Parameter(torch.zeros(1).expand(1 << 30))
    state = {
        "table": table,
        "sparse": torch.eye(3).to_sparse(),
        "plain": [b"bytes", b"", bytearray(b"x"), {1, 2}, 1 + 2j, torch.Size([2]), torch.device("cpu", 0), 2**300],
        "ordered": OrderedDict(a=torch.ones(3)),
    }
    for is_new in (True, False):
        torch.save(state, path, _use_new_zipfile_serialization=is_new)
        loaded = load_checkpoint(path)
        assert loaded["plain"] == state["plain"]
        assert loaded["table"].shape == table.shape
        assert loaded["ordered"]["a"].tolist() == [1, 1, 1]
        assert loaded["sparse"].to_dense().equal(torch.eye(3))
