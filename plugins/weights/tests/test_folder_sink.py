import json
import os
import resource
import struct
import weakref

import pytest
import torch
from safetensors import safe_open
from torch import nn

from core import CheckpointError, ConfigurationError, Fabric, ModuleError
from core.fabric import WeightDescription
from core_testing.ranks import Backend
from core_weights import FolderSink


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


class Source:
    """A stream of tensors that a test gives, whose version it sets."""

    def __init__(self, version=0, midway=lambda: None, **tensors):
        self.version, self.midway, self.tensors = (
            version,
            midway,
            tensors or {"weight": torch.ones(2)},
        )

    def metadata(self):
        return [
            WeightDescription(name, each.dtype, tuple(each.shape))
            for name, each in self.tensors.items()
        ]

    def __iter__(self):
        for name, tensor in self.tensors.items():
            yield name, tensor
            self.midway()


def read(path):
    with safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_the_bits_of_each_tensor(fabric, tmp_path):
    tensors = {
        "flags": torch.tensor([True, False, True]),  # of an odd length, before wider ones
        "nothing": torch.empty(0, 4, dtype=torch.float16),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "eighths": torch.ones(3).to(torch.float8_e4m3fn),
        "half": torch.randn(3).bfloat16(),
        "odd": torch.tensor([-0.0, torch.nan, torch.inf], dtype=torch.float64),
        "turned": torch.arange(6.0).view(2, 3).T,
        "count": torch.tensor(3),
    }
    folder = tmp_path / "made" / "here"
    FolderSink(folder).send(fabric, Source(1, **tensors))
    metadata, found = read(folder / "latest.safetensors")
    assert metadata == {"format": "pt", "version": "1"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (tensor, found[name])]
        assert torch.equal(*bits), name
    assert names_in(folder) == ["latest.safetensors", "weights-1.safetensors"]


def test_tensors_are_aligned(fabric, tmp_path):
    source = Source(
        flags=torch.ones(3, dtype=torch.bool),
        half=torch.ones(1).half(),
        wide=torch.ones(2).double(),
    )
    FolderSink(tmp_path).send(fabric, source)
    data = (tmp_path / "latest.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    assert size % 8 == 0
    places = {
        name: row["data_offsets"]
        for name, row in json.loads(data[8 : 8 + size]).items()
        if name[0] != "_"
    }
    assert places == {"wide": [0, 16], "half": [16, 18], "flags": [18, 21]}


def test_the_newest_stay_as_they_were_written(fabric, tmp_path):
    sink = FolderSink(tmp_path, keep=2)
    (tmp_path / "weights.txt").touch()
    for number, version in enumerate([7, 8, 3, 4]):  # as a run that was resumed counts
        sink.send(fabric, Source(version))
        newest = tmp_path / f"weights-{version}.safetensors"
        os.utime(newest, ns=(number, number))
        assert (tmp_path / "latest.safetensors").resolve() == newest
    kept = ["latest.safetensors", "weights-3.safetensors", "weights-4.safetensors", "weights.txt"]
    assert names_in(tmp_path) == kept
    sink.send(fabric, Source(3))
    assert names_in(tmp_path) == kept
    assert (tmp_path / "latest.safetensors").resolve().name == "weights-3.safetensors"


def test_a_reader_never_sees_half_of_a_file(fabric, tmp_path):
    sink, seen = FolderSink(tmp_path), []

    def look():
        assert (tmp_path / ".weights-partial").exists()
        seen.append([read(path)[0]["version"] for path in tmp_path.glob("*.safetensors")])

    sink.send(fabric, Source(1))
    sink.send(fabric, Source(2, look, a=torch.ones(1000), b=torch.ones(1000)))
    assert seen == [["1", "1"], ["1", "1"]]
    with safe_open(tmp_path / "latest.safetensors", "pt") as opened:
        sink.send(fabric, Source(3))
        assert torch.equal(opened.get_tensor("b"), torch.ones(1000)), (
            "an opened file can be read to its end"
        )


def test_what_a_killed_process_left_is_replaced(fabric, tmp_path):
    (tmp_path / ".weights-partial").write_bytes(b"half")
    (tmp_path / ".latest-partial").symlink_to("nowhere")
    FolderSink(tmp_path).send(fabric, Source(2))
    assert names_in(tmp_path) == ["latest.safetensors", "weights-2.safetensors"]


def test_one_tensor_is_there_at_a_time(fabric, tmp_path):
    class Fresh(Source):
        """Makes each tensor when it is asked for, by when the one before has to be gone."""

        def __iter__(self):
            self.last = lambda: None
            for name, kept in self.tensors.items():
                assert self.last() is None, f"the tensor before {name!r} is still there"
                made = [kept.clone()]
                self.last = weakref.ref(made[0])
                yield name, made.pop()

    FolderSink(tmp_path).send(fabric, Fresh(a=torch.ones(2), b=torch.ones(2), c=torch.ones(2)))
    assert read(tmp_path / "latest.safetensors")[1].keys() == {"a", "b", "c"}


def test_a_full_disk_is_one_error_on_all_ranks(tmp_path):
    """Rank 1 has to give its parts of the tensors that rank 0 can't write, or both would wait."""

    def send_to_a_full_disk(rank, folder):
        """Send a version, another while rank 0 can't write so much, and one more. What each rank
        raised.
        """
        fabric = rank.fabric()
        model = fabric.setup(nn.Sequential(*(nn.Linear(20, 20) for _ in range(4))))
        stream, sink = fabric.weights(model), FolderSink(folder)
        # of both ranks: they are in one process
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        sink.send(fabric, stream)
        if fabric.is_global_zero:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            sink.send(fabric, stream)
        except Exception as error:
            caught = (type(error), str(error), names_in(folder))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        fabric.barrier()
        sink.send(fabric, stream)
        return caught

    results = Backend(lambda: "fsdp", num_processes=2, in_process=True).run(
        send_to_a_full_disk, tmp_path
    )
    for rank, (kind, text, names) in enumerate(results):
        assert kind is CheckpointError
        assert text.startswith("On rank 0: " if rank else "The checkpoint ")
        assert "weights-2.safetensors' can't be written: File too large" in text
        assert names == ["latest.safetensors", "weights-1.safetensors"]
    assert read(tmp_path / "latest.safetensors")[0]["version"] == "3"


@pytest.mark.parametrize(
    ("tensors", "described", "text"),
    [
        (
            {"a": torch.ones(2)},
            {"a": torch.ones(3)},
            r"has 'a', torch.float32, \(3,\), and it yields 'a', .* \(2,\)",
        ),
        (
            {"a": torch.ones(2)},
            {"a": torch.ones(2), "b": torch.ones(1)},
            r"has 'b', .*, and it yields 'nothing'",
        ),
        (
            {"a": torch.ones(2), "b": torch.ones(1)},
            {"a": torch.ones(2)},
            r"yields 'b', which its metadata\(\) doesn't",
        ),
    ],
    ids=["other shape", "one less", "one more"],
)
def test_a_stream_that_is_not_as_described_is_refused(fabric, tmp_path, tensors, described, text):
    source = Source(**tensors)
    source.metadata = Source(**described).metadata
    with pytest.raises(ModuleError, match=text):
        FolderSink(tmp_path).send(fabric, source)
    assert names_in(tmp_path) == []


def test_what_such_files_cannot_hold_is_refused(fabric, tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"'a' is of torch.complex128, which files of safetensors don't have",
    ):
        FolderSink(tmp_path / "new").send(fabric, Source(a=torch.ones(2, dtype=torch.complex128)))
    assert names_in(tmp_path) == []
    with pytest.raises(ConfigurationError, match=r"FolderSink\(keep=0\): expected 1 or more"):
        FolderSink(tmp_path, keep=0)
