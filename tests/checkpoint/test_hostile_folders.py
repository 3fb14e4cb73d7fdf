"""Folders whose digests are right, and whose content nobody has written: the same state, or a
CheckpointError.
"""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.damaged_on_purpose import (
    bounded_memory,
    change_anywhere,
    everything,
    read_index,
    write_index,
)
from core.checkpoint import load_checkpoint, newest_valid, verify_checkpoint
from core.checkpoint.upkeep.summary import summarize
from core.contract import CheckpointCorruptedError, CheckpointError, Chunk, ShardedLeaf
from support.checkpoint_collectives import save_state

MIB = 1 << 20


def rewrite(path, change):
    """Let `change` alter the index in place."""
    _, content = read_index(path)
    change(content)
    write_index(path, json.dumps(content).encode())


# Anything at all.


@pytest.fixture
def filled_memory():
    """Let memory that is left unfilled be full of NaN, or of the largest numbers."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=150, suppress_health_check=HealthCheck)
@given(random=st.randoms(use_true_random=False))
def test_a_changed_folder_is_the_same_state_or_refused(path, filled_memory, random):
    def all_bytes(value):
        """Those of all tensors and arrays."""
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return b"".join(map(all_bytes, value))
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                value = value._values() if value.is_sparse else value.values()
            return bytes(value.reshape(-1).view(torch.uint8).tolist())
        return value.tobytes() if isinstance(value, np.ndarray) else b""

    def loaded_or_refused(path):
        """The state, None if it is refused. Whatever looks at a checkpoint does either."""
        for look in (verify_checkpoint, summarize):
            with contextlib.suppress(CheckpointError):
                look(path)
        try:
            return load_checkpoint(path)
        except CheckpointError:
            return None

    whole = path.with_name("whole.ckpt")
    if not whole.exists():
        save_state(whole, everything())
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path)
    _, content = read_index(path)
    for _ in range(random.randint(1, 3)):
        change_anywhere(content, random)
    write_index(path, json.dumps(content).encode())
    state = loaded_or_refused(path)
    if state is not None:
        assert max(all_bytes(state), default=0) < 64, (
            "bytes that no file has: memory that nobody has filled"
        )


# What was tried on purpose.


def refused(path, match):
    for look in (load_checkpoint, verify_checkpoint, summarize):
        with pytest.raises(CheckpointCorruptedError, match=match):
            look(path)


@pytest.mark.parametrize("code", ["|O", "O", "|V8", "<M8[s]", "f4,O", "(2,)<f4", ">f4", 5, None])
@pytest.mark.parametrize("tag", ["$scalar", "$array"])
def test_no_type_of_numpys_but_numbers_and_strings_is_made(path, code, tag):
    save_state(path, {"x": np.float64(0.5) if tag == "$scalar" else np.ones(2)})
    rewrite(path, lambda content: content["tree"]["x"][tag].__setitem__(0, code))
    refused(
        path,
        r"last\.ckpt' holds something that this release of core can't read: .*(native|understood)",
    )


@pytest.mark.parametrize("value", [{"$dict": [[[1], 2]]}, {"$dtype": "float31"}, {"$nosuch": 1}])
def test_what_core_has_not_written_is_refused(path, value):
    save_state(path, {"x": 1})
    rewrite(path, lambda content: content["tree"].update(x=value))
    refused(path, r"last\.ckpt' holds something that this release of core can't read")


def chunked(path, places):
    """A tensor of shape 4 x 4 and its two chunks, which the index then says to be others."""
    halves = [Chunk((row, 0), (2, 4), torch.full((2, 4), row)) for row in (0, 2)]
    save_state(path, {"w": ShardedLeaf((4, 4), torch.int64, tuple(halves))})

    def change(content):
        (chunks,) = content["leaves"].values()
        content["leaves"] = {'["w"]': [[*place, chunks[0][2]] for place in places]}

    rewrite(path, change)


@pytest.mark.parametrize(
    "places",
    [
        [([0, 0], [2, 4]), ([1, 0], [2, 4])],
        [([0, 0], [2, 4]), ([0, 0], [2, 4])],
        [([0, 0], [2, 4]), ([3, 0], [2, 4])],
        [([0, 0], [4, 2]), ([0, 1], [2, 4])],
        [([2, 0], [4, 4])],
    ],
)
def test_chunks_that_do_not_cover_a_tensor_are_refused(path, places):
    chunked(path, places)
    refused(
        path,
        r"last\.ckpt' is incomplete: the parts of 'w' in its files don't cover its shape, each",
    )
    with pytest.raises(CheckpointCorruptedError, match="incomplete"):
        load_checkpoint(path, {"w": torch.zeros(4, 4)})


@pytest.mark.parametrize(
    "firsts", [{"w": (0, 1)}, {"hole": (0,), "w": (0, 2, 2)}], ids=["overlap", "hole and overlap"]
)
def test_chunks_that_do_not_cover_a_tensor_are_not_saved(path, firsts):
    """Nor is a hole in one tensor filled by what another has twice."""

    def rows(numbers):
        chunks = tuple(Chunk((number, 0), (2, 4), torch.zeros(2, 4)) for number in numbers)
        return ShardedLeaf((4, 4), torch.float32, chunks)

    with pytest.raises(
        CheckpointError, match=r"The chunks of 'w' overlap, or leave its shape \(4, 4\)"
    ):
        save_state(path, {name: rows(numbers) for name, numbers in firsts.items()})
    assert list(path.parent.iterdir()) == []


def test_a_manifest_that_the_system_does_not_read_is_an_error_that_says_so(path):
    path.mkdir()
    (path / "manifest.json").symlink_to("manifest.json")  # in a circle
    with pytest.raises(CheckpointError, match=r"last\.ckpt' can't be read: "):
        load_checkpoint(path)


def test_what_is_nested_as_deeply_as_can_be_comes_back(path):
    def nested(depth):
        return json.loads("[" * depth + "]" * depth)

    save_state(path, {"x": nested(128), "y": 1})
    assert load_checkpoint(path) == {"x": nested(128), "y": 1}
    with pytest.raises(
        CheckpointError, match="nested too deeply to be saved, more than 128 levels"
    ):
        save_state(path, {"x": nested(129)})


@pytest.mark.parametrize("depth", [900, 1_000_000])
def test_nesting_is_bounded(path, depth):
    save_state(path, {"x": 1})
    write_index(
        path, b'{"leaves":{},"blocks":[],"tree":{"x":' + b"[" * depth + b"]" * depth + b"}}"
    )
    with bounded_memory(64 * MIB):
        refused(path, r"RecursionError")
    (path / "manifest.json").write_bytes(
        b'{"title":"core checkpoint","x":' + b"[" * depth + b"]" * depth + b"}"
    )
    refused(path, r"manifest\.json' is damaged")


@pytest.mark.parametrize("name", ["manifest.json", "-00000.json", "-00000.data"])
def test_files_with_terabytes_of_nothing_are_not_read(path, name):
    save_state(path, {"x": torch.ones(100)})
    (file,) = path.glob(f"*{name}")
    os.truncate(file, 2**40)
    with bounded_memory(64 * MIB), pytest.raises(CheckpointCorruptedError, match=name):
        verify_checkpoint(path)


# What isn't a file.


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


KINDS = [(pipe, "something else"), (device, "something else"), (os.mkdir, "a folder")]


@pytest.mark.parametrize(("make", "kind"), KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "-00000.json", "-00000.data"])
def test_what_is_no_file_is_refused_at_once(path, make, kind, name):
    save_state(path, {"x": torch.ones(100)})
    (file,) = path.glob(f"*{name}")
    file.unlink()
    make(file)
    refused(path, rf"{name}' is {kind}, where a file was expected")
    with pytest.warns(
        UserWarning, match=f"is {kind}, where a file was expected. Looking for an older one"
    ):
        assert newest_valid(path.parent) is None


@pytest.mark.parametrize(("make", "kind"), KINDS[:2])
def test_what_is_no_file_is_no_checkpoint(path, make, kind):
    make(path)
    refused(path, r"last\.ckpt' is neither a folder nor a file")
    with pytest.warns(
        UserWarning, match="is neither a folder nor a file. Looking for an older one"
    ):
        assert newest_valid(path.parent) is None
