import io
import os
import random
import shutil
from collections import OrderedDict

import numpy as np
import pytest
import torch
import xxhash
from torch import nn

from core.checkpoint import (
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
    verify_checkpoint,
)
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from support.checkpoint_collectives import Alone

ALONE = Alone()


@pytest.fixture
def checkpoint_io():
    return TorchCheckpointIO()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.ckpt"


def save(path, state):
    TorchCheckpointIO().save_checkpoint(state, path, collectives=ALONE)


def load(path):
    return TorchCheckpointIO().load_checkpoint(path, collectives=ALONE)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


# There and back.


def test_a_training_run_comes_back(path):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(module.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    save(
        path, {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    )

    loaded = load(path)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    other.load_state_dict(loaded["module"])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())
    assert loaded["module"]._metadata == module.state_dict()._metadata
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert loaded["scheduler"] == scheduler.state_dict()


def test_every_type_that_is_accepted_comes_back_as_it_was(path):
    plain = {
        "scalars": [None, True, 1, -(2**70), 1.5, float("inf"), 1 + 2j, "text é", b"bytes", bytearray(b"array")],
        "containers": [{}, [], (), (1, (2, 3)), {1, 2}, OrderedDict(a=1), {(1, "a"): 2, 3: 4, None: 5}],
        "descriptions": [torch.float16, torch.Size([1, 2]), torch.device("cpu")],
        "scalars of numpy": [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a")],
        "random": random.getstate(),
    }
    save(path, plain)
    loaded = load(path)
    assert loaded == plain
    assert repr(loaded) == repr(plain)  # types of what is equal across types: True and 1, float and np.float32


@pytest.mark.parametrize("code", [*"?bhilBHILefdgFDG", "U3", "S3"])
def test_arrays_come_back_as_arrays(path, code):
    array = np.zeros((2, 3), code)
    save(path, {"array": array, "turned": array.T, "empty": array[:0], "scalar": array[0, 0]})
    loaded = load(path)
    assert loaded["array"].dtype == array.dtype
    np.testing.assert_array_equal(loaded["array"], array)
    assert loaded["empty"].shape == (0, 3)
    assert loaded["turned"].shape == (3, 2)
    assert type(loaded["scalar"]) is type(array[0, 0])


def test_tensors_of_every_form_come_back(path):
    tensors = {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "expanded": torch.ones(1).expand(1000),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    save(path, tensors)
    loaded = load(path)
    assert list(loaded) == list(tensors)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert not loaded["parameter"].requires_grad
    sparse = torch.eye(3).to_sparse()
    save(path, {"sparse": sparse})
    assert torch.equal(load(path)["sparse"].to_dense(), torch.eye(3))


def test_a_view_does_not_drag_its_storage_along(path):
    large = torch.arange(1_000_000.0)
    save(path, {"row": large[10:13], "column": large.reshape(1000, 1000)[:3, 0]})
    assert path.stat().st_size < 10_000
    loaded = load(path)
    assert loaded["row"].tolist() == [10, 11, 12]
    assert loaded["column"].tolist() == [0, 1000, 2000]


def test_tensors_that_share_memory_go_on_sharing_it(path):
    large = torch.arange(1_000_000.0)
    weight, part = torch.ones(100_000), large[:100_000]
    save(path, {"tied": [weight, weight, weight.view(10, -1)], "parts": [part, large[:100_000]]})
    assert path.stat().st_size < 2 * weight.nbytes + 10_000
    loaded = load(path)
    loaded["tied"][0].fill_(7)
    loaded["parts"][0].fill_(8)
    assert loaded["tied"][1][0] == loaded["tied"][2][0, 0] == 7
    assert loaded["parts"][1][0] == 8


def test_the_state_that_was_saved_is_untouched(path):
    parameter = nn.Parameter(torch.ones(2))
    state = {"list": [parameter], "array": np.ones(2)}
    save(path, state)
    assert state["list"][0] is parameter
    load(path)["list"][0].fill_(5)
    assert parameter.tolist() == [1, 1]


def test_what_was_loaded_outlives_the_file(path):
    save(path, {"x": torch.ones(100_000)})
    loaded = load(path)
    with path.open("r+b") as file:
        file.truncate(0)
    assert loaded["x"].sum() == 100_000


def test_torch_reads_the_file_without_core(path):
    save(path, {"weight": torch.ones(2), "step": 3})
    loaded = torch.load(path, weights_only=True)
    assert (loaded["step"], loaded["weight"].tolist()) == (3, [1, 1])


def test_the_digest_is_that_of_xxhsum(path):
    save(path, {"step": 3})
    text = (path.parent / ".last.ckpt.digest").read_text()
    assert text == f"xxh3-128 {xxhash.xxh3_128(path.read_bytes()).hexdigest()}\n"


# What is refused.


class Foo:
    pass


class HasState:
    def state_dict(self):
        return {}


def refuse(path, state):
    with pytest.raises(CheckpointError) as caught:
        save(path, state)
    assert not list(path.parent.iterdir()), "something was written"
    return str(caught.value)


def test_an_object_is_refused_by_its_path(path):
    message = refuse(path, {"callbacks": {"x": [0, 1, 2, Foo()]}})
    assert message.startswith(f"state['callbacks']['x'][3] is a {Foo.__module__}.Foo, which a checkpoint can't hold")
    assert "Expected numbers, strings" in message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: None, "builtins.function"),
        (HasState(), r"Save its state_dict() instead."),
        (np.array([Foo()]), "NumPy array of type '|O'"),
        (np.array(["2024-01-01"], "M8[D]"), "NumPy array of type '<M8[D]'"),
        (np.zeros(2, ">f4"), "Expected numbers or strings in this machine's byte order"),
        (frozenset(), "builtins.frozenset"),
        (range(3), "builtins.range"),
        (torch.finfo, "builtins.type"),
        (torch.ones(2, device="meta"), "on the meta device, which has no values"),
        (nn.UninitializedParameter(), "UninitializedParameter"),
        ("\ud800", "lone surrogate"),
        (1 << 5000, "an int of 5001 bits"),
        ({Foo(): 1}, "the key <"),
    ],
)
def test_what_could_not_come_back_is_refused(path, value, expected):
    message = refuse(path, {"a": value})
    assert "state['a']" in message
    assert expected in message


def test_subclasses_are_refused_as_they_would_need_their_class(path):
    class Number(int):
        pass

    for value in (Number(3), type("Pair", (tuple,), {})((1, 2)), OrderedDict(x=[Number(1)])):
        refuse(path, {"a": value})


def test_a_state_that_holds_itself_is_refused(path):
    state = {"a": []}
    state["a"].append(state)
    assert "nested too deeply to be saved, or holds itself" in refuse(path, state)


# What is damaged.


def test_a_flipped_bit_anywhere_is_found_and_the_file_is_named(path):
    save(path, {"x": torch.ones(50), "name": "value"})
    content = path.read_bytes()
    for position in random.Random(0).sample(range(len(content)), 50):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt' is damaged.*last.ckpt.digest. Load an earlier"):
            load(path)


@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_truncated_file_is_found(path, size):
    save(path, {"x": torch.ones(50)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt' is damaged"):
        load(path)


def test_a_damaged_digest_is_named(path):
    save(path, {"x": 1})
    (path.parent / ".last.ckpt.digest").write_bytes(b"\xff\x00 rubbish")
    with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt.digest is damaged.*Delete it to load"):
        load(path)


def test_a_file_from_elsewhere_is_loaded_and_can_be_replaced_and_verifying_tells_of_it(path):
    torch.save({"weight": torch.ones(2)}, path)
    assert load(path)["weight"].tolist() == [1, 1]
    with pytest.warns(UserWarning, match=r"has no digest beside it.*damage to it would not be seen"):
        verify_checkpoint(path)
    save(path, {"weight": torch.zeros(2)})
    assert load(path)["weight"].tolist() == [0, 0]
    verify_checkpoint(path)


ran = []


class RunsCode:
    def __reduce__(self):
        return (ran.append, ("it ran",))


def test_code_in_a_file_does_not_run(path):
    torch.save({"x": RunsCode()}, path)
    with pytest.raises(CheckpointCorruptedError, match="GLOBAL getattr was not an allowed"):
        load(path)
    assert not ran


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04 rubbish"])
def test_a_file_that_is_none(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptedError, match="is not a checkpoint"):
        load(path)


def test_a_file_that_holds_no_state(path):
    torch.save(torch.ones(2), path)
    with pytest.raises(CheckpointCorruptedError, match="holds a Tensor"):
        load(path)


# What is not there.


def test_a_missing_file_names_its_neighbours(path):
    save(path, {"x": 1})
    save(path.with_name("first.ckpt"), {"x": 1})
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint .*lats.ckpt'. In that folder are: last.ckpt"):
        load(path.with_name("lats.ckpt"))
    with pytest.raises(FileNotFoundError, match=r"In that folder are: first.ckpt, last.ckpt\."):
        load(path.with_name("epoch=3.pt"))


def test_a_missing_folder_and_an_empty_one(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="No checkpoint is in that folder"):
        load(tmp_path / "last.ckpt")
    (tmp_path / "lats.py").touch()
    with pytest.raises(CheckpointNotFoundError, match="No checkpoint is in that folder"):
        load(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointNotFoundError, match="nor its folder"):
        load(tmp_path / "nowhere" / "last.ckpt")


def test_a_folder_is_no_file(path):
    path.mkdir()
    with pytest.raises(CheckpointCorruptedError, match=r"is a folder without manifest.json: no checkpoint of core"):
        load(path)
    with pytest.raises(CheckpointError, match=r"can't be written: Is a directory.* Expected no folder there: move it"):
        save(path, {"x": 1})
    assert names(path.parent) == [".last.ckpt.digest", "last.ckpt"]


def test_exists_and_remove(checkpoint_io, path):
    assert not checkpoint_io.exists(path)
    save(path, {"x": 1})
    assert checkpoint_io.exists(path)
    assert not checkpoint_io.exists(path.parent)
    checkpoint_io.remove_checkpoint(path, collectives=ALONE)
    assert names(path.parent) == []
    checkpoint_io.remove_checkpoint(path, collectives=ALONE)


def test_missing_folders_are_made(tmp_path):
    save(tmp_path / "a" / "b" / "last.ckpt", {"x": 1})
    assert load(str(tmp_path / "a" / "b" / "last.ckpt")) == {"x": 1}


# URLs.


def test_a_file_url_is_a_local_path(path):
    save(f"file://{path}", {"x": 1})
    assert load(path) == {"x": 1}


@pytest.mark.parametrize("storage", [TorchCheckpointIO, DistributedCheckpointIO])
def test_a_file_url_may_be_as_the_path_itself_writes_it(storage, tmp_path):
    """With a space, a letter outside ASCII and a percent sign."""
    folder, storage = tmp_path / "Läufe von heute, 100 %", storage()
    folder.mkdir()
    url = (folder / "last.ckpt").as_uri()
    storage.save_checkpoint({"x": 1}, url, collectives=ALONE)
    assert names(folder.parent) == [folder.name]
    assert storage.exists(url)
    assert load_checkpoint(url) == load_checkpoint(folder / "last.ckpt") == {"x": 1}
    assert newest_valid(folder.as_uri(), storage=storage) == url


@pytest.fixture
def url():
    import fsspec

    filesystem = fsspec.filesystem("memory")
    yield "memory://folder/last.ckpt"
    filesystem.rm("/folder", recursive=True)


def test_a_remote_checkpoint_is_replaced_read_and_removed(checkpoint_io, url):
    import fsspec

    filesystem = fsspec.filesystem("memory")
    for step in range(2):
        save(url, {"x": torch.full((3,), step), "a": np.ones(2)})
        assert load(url)["x"].tolist() == [step] * 3
    assert sorted(filesystem.ls("/folder", detail=False)) == ["/folder/.last.ckpt.digest", "/folder/last.ckpt"]
    content = bytearray(filesystem.cat_file("/folder/last.ckpt"))
    content[len(content) // 2] ^= 1
    filesystem.pipe_file("/folder/last.ckpt", bytes(content))
    with pytest.raises(CheckpointCorruptedError, match=r"memory://folder/last.ckpt' is damaged"):
        load(url)
    with pytest.raises(CheckpointNotFoundError, match=r"In that folder are: last.ckpt"):
        load("memory://folder/lost.ckpt")
    assert checkpoint_io.exists(url)
    checkpoint_io.remove_checkpoint(url, collectives=ALONE)
    assert not checkpoint_io.exists(url)
    filesystem.makedirs("/folder", exist_ok=True)


def test_a_remote_file_from_elsewhere(url):
    import fsspec

    buffer = io.BytesIO()
    torch.save({"x": 1}, buffer)
    fsspec.filesystem("memory").pipe_file("/folder/last.ckpt", buffer.getvalue())
    assert load(url) == {"x": 1}
    save(url, {"x": 2})
    assert load(url) == {"x": 2}


def test_an_unknown_protocol_is_told():
    with pytest.raises(CheckpointError, match=r"'nosuch://x' can't be read: ValueError: Protocol not known: nosuch"):
        load("nosuch://x")


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
        array_of(type_of("O8")),
        array_of(type_of("f8"), b"A" * 80),
        array_of(type_of("f8", (3, ">", None, None, None, -1, -1, 0))),
        array_of(type_of("U2"), b"AAAAAAAA"),
        Pickled(SCALAR, (type_of("f8", POINTERS), b"A" * 8)),
        Pickled(SCALAR, (type_of("O8"), b"A" * 8)),
        Pickled(SCALAR, (type_of("V8"), b"A" * 8)),
        Pickled(RECONSTRUCT, (np.ndarray, (0,), b"b")),
        torch.sparse_coo_tensor(torch.tensor([[0, 500]]), torch.ones(2), (3,), check_invariants=False),
    ],
)
def test_no_value_makes_an_access_to_other_memory(path, value):
    torch.save({"x": value}, path)
    with pytest.raises(CheckpointCorruptedError, match=r"last\.ckpt' is not a checkpoint that can be loaded"):
        load(path)


def repeated(depth, state):
    for _ in range(depth):
        state = [state, state]
    return state


def test_numpys_own_types_are_never_made_whatever_the_program_allows(path):
    """One with fields of objects would take bytes of the file for pointers."""
    forged = array_of(type_of("f8", POINTERS))
    allowed = [np.dtype, np.ndarray, np.dtypes.Float64DType, np.dtypes.ObjectDType, RECONSTRUCT, (SCALAR, "numpy.x")]
    with torch.serialization.safe_globals(allowed):
        for value in (forged, Pickled(SCALAR, (type_of("f8", POINTERS), b"A" * 8)), Pickled(np.dtypes.ObjectDType, ())):
            torch.save({"x": value}, path)
            with pytest.raises(CheckpointCorruptedError, match=r"NumPy's type 'O8'|ObjectDType"):
                load(path)
        torch.save({"x": np.arange(3.0)}, path)
        assert type(load(path)["x"]) is np.ndarray
        assert set(torch.serialization.get_safe_globals()) >= set(allowed)


def test_a_file_that_holds_itself_is_refused(path):
    torch.save({"x": repeated(3, {"y": np.ones(1)})}, path)
    assert load(path) == {"x": repeated(3, {"y": np.ones(1)})}
    endless = []
    endless.append(endless)
    torch.save({"x": endless}, path)
    with pytest.raises(CheckpointCorruptedError, match="maximum recursion depth"):
        load(path)


@pytest.mark.parametrize("name", ["last.ckpt", ".last.ckpt.digest", ".weights.safetensors.digest"])
def test_a_pipe_is_not_waited_for(path, name):
    save(path, {"x": 1})
    shutil.copy(path, path.with_name("weights.safetensors"))
    path.with_name(name).unlink(missing_ok=True)
    os.mkfifo(path.with_name(name))
    with pytest.raises(CheckpointCorruptedError, match=r"is something else, where a|is neither a folder nor a file"):
        load(path.with_name(name.removeprefix(".").removesuffix(".digest")))
