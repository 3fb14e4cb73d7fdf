import io
import os
import random
import shutil

import fsspec
import numpy as np
import pytest
import torch
import xxhash
from torch import nn

from core.checkpoint import (
    TorchCheckpointIO,
    load_checkpoint,
    verify_checkpoint,
)
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from support.checkpoint_collectives import save_state


def save(path, state):
    save_state(path, state, TorchCheckpointIO())


def test_a_view_does_not_drag_its_storage_along(path):
    large = torch.arange(1_000_000.0)
    save(path, {"row": large[10:13], "column": large.reshape(1000, 1000)[:3, 0]})
    assert path.stat().st_size < 10_000
    loaded = load_checkpoint(path)
    assert loaded["row"].tolist() == [10, 11, 12]
    assert loaded["column"].tolist() == [0, 1000, 2000]


def test_the_state_that_was_saved_is_untouched(path):
    parameter = nn.Parameter(torch.ones(2))
    state = {"list": [parameter], "array": np.ones(2)}
    save(path, state)
    assert state["list"][0] is parameter
    load_checkpoint(path)["list"][0].fill_(5)
    assert parameter.tolist() == [1, 1]


def test_torch_reads_the_file_without_core(path):
    save(path, {"weight": torch.ones(2), "step": 3})
    loaded = torch.load(path, weights_only=True)
    assert (loaded["step"], loaded["weight"].tolist()) == (3, [1, 1])


def test_the_digest_is_that_of_xxhsum(path):
    save(path, {"step": 3})
    text = (path.parent / ".last.ckpt.digest").read_text()
    assert text == f"xxh3-128 {xxhash.xxh3_128(path.read_bytes()).hexdigest()}\n"


# What is damaged.


def test_a_flipped_bit_anywhere_is_found_and_the_file_is_named(path):
    save(path, {"x": torch.ones(50), "name": "value"})
    content = path.read_bytes()
    for position in random.Random(0).sample(range(len(content)), 50):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(
            CheckpointCorruptedError,
            match=r"last.ckpt' is damaged.*last.ckpt.digest. Load an earlier",
        ):
            load_checkpoint(path)


def test_a_damaged_digest_is_named(path):
    save(path, {"x": 1})
    (path.parent / ".last.ckpt.digest").write_bytes(b"\xff\x00 rubbish")
    with pytest.raises(
        CheckpointCorruptedError, match=r"last.ckpt.digest is damaged.*Delete it to load"
    ):
        load_checkpoint(path)


def test_a_file_from_elsewhere_is_loaded_and_can_be_replaced_and_verifying_tells_of_it(path):
    torch.save({"weight": torch.ones(2)}, path)
    assert load_checkpoint(path)["weight"].tolist() == [1, 1]
    with pytest.warns(
        UserWarning, match=r"has no digest beside it.*damage to it would not be seen"
    ):
        verify_checkpoint(path)
    save(path, {"weight": torch.zeros(2)})
    assert load_checkpoint(path)["weight"].tolist() == [0, 0]
    verify_checkpoint(path)


def test_code_in_a_file_does_not_run(path):
    ran = []

    class RunsCode:
        def __reduce__(self):
            return (ran.append, ("it ran",))

    torch.save({"x": RunsCode()}, path)
    with pytest.raises(CheckpointCorruptedError, match="GLOBAL getattr was not an allowed"):
        load_checkpoint(path)
    assert not ran


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04 rubbish"])
def test_a_file_that_is_none(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptedError, match="is not a checkpoint"):
        load_checkpoint(path)


def test_a_file_that_holds_no_state(path):
    torch.save(torch.ones(2), path)
    with pytest.raises(CheckpointCorruptedError, match="holds a Tensor"):
        load_checkpoint(path)


# What is not there.


def test_a_folder_is_no_file(path):
    path.mkdir()
    with pytest.raises(
        CheckpointCorruptedError, match=r"is a folder without manifest.json: no checkpoint of core"
    ):
        load_checkpoint(path)
    with pytest.raises(
        CheckpointError,
        match=r"can't be written: Is a directory.* Expected no folder there: move it",
    ):
        save(path, {"x": 1})
    assert sorted(os.listdir(path.parent)) == [".last.ckpt.digest", "last.ckpt"]


# URLs.


@pytest.fixture
def url():
    filesystem = fsspec.filesystem("memory")
    yield "memory://folder/last.ckpt"
    filesystem.rm("/folder", recursive=True)


def test_a_remote_file_and_its_digest_are_alone_and_damage_is_found(url):
    filesystem = fsspec.filesystem("memory")
    save(url, {"x": 1})
    save(url, {"x": 2})
    assert sorted(filesystem.ls("/folder", detail=False)) == [
        "/folder/.last.ckpt.digest",
        "/folder/last.ckpt",
    ]
    content = bytearray(filesystem.cat_file("/folder/last.ckpt"))
    content[len(content) // 2] ^= 1
    filesystem.pipe_file("/folder/last.ckpt", bytes(content))
    with pytest.raises(CheckpointCorruptedError, match=r"memory://folder/last.ckpt' is damaged"):
        load_checkpoint(url)
    with pytest.raises(CheckpointNotFoundError, match=r"In that folder are: last.ckpt"):
        load_checkpoint("memory://folder/lost.ckpt")


def test_a_remote_file_from_elsewhere(url):
    buffer = io.BytesIO()
    torch.save({"x": 1}, buffer)
    fsspec.filesystem("memory").pipe_file("/folder/last.ckpt", buffer.getvalue())
    assert load_checkpoint(url) == {"x": 1}
    save(url, {"x": 2})
    assert load_checkpoint(url) == {"x": 2}


def test_an_unknown_protocol_is_told():
    with pytest.raises(
        CheckpointError, match=r"'nosuch://x' can't be read: ValueError: Protocol not known: nosuch"
    ):
        load_checkpoint("nosuch://x")


# What somebody has made by hand.


class Pickled:
    """Pickled as whatever its maker says."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


POINTERS = (3, "<", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
RECONSTRUCT, SCALAR = np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]


def type_of(code, state=None):
    return Pickled(np.dtype, (code, False, True), *([state] if state else []))


def array_of(kind, content=b"A" * 8):
    return Pickled(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), kind, False, content))


@pytest.mark.parametrize(
    "value",
    [
        array_of(type_of("f8", POINTERS)),
        array_of(type_of("V8")),
        array_of(type_of("f8", (3, ">", None, None, None, -1, -1, 0))),
        Pickled(SCALAR, (type_of("f8", POINTERS), b"A" * 8)),
        Pickled(SCALAR, (type_of("O8"), b"A" * 8)),
        Pickled(RECONSTRUCT, (np.ndarray, (0,), b"b")),
        torch.sparse_coo_tensor(
            torch.tensor([[0, 500]]), torch.ones(2), (3,), check_invariants=False
        ),
    ],
)
def test_no_value_makes_an_access_to_other_memory(path, value):
    torch.save({"x": value}, path)
    with pytest.raises(
        CheckpointCorruptedError, match=r"last\.ckpt' is not a checkpoint that can be loaded"
    ):
        load_checkpoint(path)


def test_numpys_own_types_are_never_made_whatever_the_program_allows(path):
    """One with fields of objects would take bytes of the file for pointers."""
    forged = array_of(type_of("f8", POINTERS))
    allowed = [
        np.dtype,
        np.ndarray,
        np.dtypes.Float64DType,
        np.dtypes.ObjectDType,
        RECONSTRUCT,
        (SCALAR, "numpy.x"),
    ]
    with torch.serialization.safe_globals(allowed):
        for value in (
            forged,
            Pickled(SCALAR, (type_of("f8", POINTERS), b"A" * 8)),
            Pickled(np.dtypes.ObjectDType, ()),
        ):
            torch.save({"x": value}, path)
            with pytest.raises(CheckpointCorruptedError, match=r"NumPy's type 'O8'|ObjectDType"):
                load_checkpoint(path)
        torch.save({"x": np.arange(3.0)}, path)
        assert type(load_checkpoint(path)["x"]) is np.ndarray
        assert set(torch.serialization.get_safe_globals()) >= set(allowed)


def test_a_file_that_holds_itself_is_refused(path):
    def repeated(depth, state):
        for _ in range(depth):
            state = [state, state]
        return state

    torch.save({"x": repeated(3, {"y": np.ones(1)})}, path)
    assert load_checkpoint(path) == {"x": repeated(3, {"y": np.ones(1)})}
    endless = []
    endless.append(endless)
    torch.save({"x": endless}, path)
    with pytest.raises(CheckpointCorruptedError, match="maximum recursion depth"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["last.ckpt", ".last.ckpt.digest", ".weights.safetensors.digest"])
def test_a_pipe_is_not_waited_for(path, name):
    save(path, {"x": 1})
    shutil.copy(path, path.with_name("weights.safetensors"))
    path.with_name(name).unlink(missing_ok=True)
    os.mkfifo(path.with_name(name))
    with pytest.raises(
        CheckpointCorruptedError, match=r"is something else, where a|is neither a folder nor a file"
    ):
        load_checkpoint(path.with_name(name.removeprefix(".").removesuffix(".digest")))
