"""Folders whose digests are right, and whose content nobody has written: the same state, or a
CheckpointError.
"""

import contextlib
import copy
import json
import math
import os
import shutil
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.damaged_on_purpose import bounded_memory, read_index, write_index
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


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=150, suppress_health_check=HealthCheck)
@given(random=st.randoms(use_true_random=False))
def test_a_changed_folder_is_the_same_state_or_refused(path, random):
    def everything():
        """A state with each kind of value in it. No byte of its tensors and arrays is above 63."""

        def numbers(*shape):
            return (
                (torch.arange(4 * math.prod(shape)) % 61 + 1)
                .to(torch.uint8)
                .view(torch.float32)
                .reshape(shape)
            )

        rows = tuple(Chunk((row, 0), (2, 6), numbers(2, 6)) for row in (0, 2))
        indices = torch.tensor([[0, 1], [2, 0]])
        return {
            "tensors": [
                numbers(3, 5),
                numbers(0, 3),
                numbers(4).view(torch.bfloat16),
                numbers(2).view(torch.int64)[0],
            ],
            "rows": ShardedLeaf((4, 6), torch.float32, rows),
            "coo": torch.sparse_coo_tensor(indices, numbers(2), (2, 3)).coalesce(),
            "csr": torch.sparse_csr_tensor(
                torch.tensor([0, 1, 2]), torch.tensor([0, 2]), numbers(2), (2, 3)
            ),
            "arrays": [numbers(2, 3).numpy(), np.array(["12", "3"]), np.float64(0.5), np.str_("x")],
            "plain": [
                None,
                -0.5,
                float("inf"),
                1 + 2j,
                b"bytes",
                bytearray(b"x"),
                (1, (2,)),
                {4, "a"},
            ],
            "keys": {(1, "a"): 2, None: 5, "$x": 1},
            "classes": [
                OrderedDict(a=1),
                Counter("aab"),
                torch.Size([2]),
                torch.float16,
                torch.device("cpu"),
            ],
        }

    junk = [
        None,
        True,
        [],
        {},
        [[]],
        [0],
        float("nan"),
        0,
        -1,
        3,
        63,
        2**31,
        2**60,
        2**64 + 1,
        10**300,
        -(2**63),
        0.5,
        "|O",
        "<f4",
        ">f4",
        "<U900000000",
        "<M8[s]",
        "f4,O",
        "(3,)O",
        "\ud800",
        "",
        "$tuple",
        "float32",
        "quint8",
        "strided",
        "sparse_csr",
        "nan",
        "cuda:99",
        "AAAA",
        "../x",
        "1" * 5000,
        "_dynamo",
        {"$array": ["<f8", "QUFBQUFBQUE="]},
    ]
    tags = [
        "$tensor",
        "$array",
        "$scalar",
        "$sparse",
        "$dict",
        "$tuple",
        "$set",
        "$bytes",
        "$size",
        "$dtype",
        "$unknown",
    ]

    def places(value):
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, item in items:
            yield value, key
            yield from places(item)

    def change_anywhere(content):
        """Another value in some place of JSON: junk, one of another place, or its own with a tag; or
        none.
        """
        (holder, key), (other, other_key) = random.choices([*places(content)], k=2)
        value = copy.deepcopy(
            random.choice(
                [random.choice(junk), other[other_key], {random.choice(tags): holder[key]}]
            )
        )
        if random.random() < 0.2:
            del holder[key]
        else:
            holder[key] = value

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
        change_anywhere(content)
    write_index(path, json.dumps(content).encode())
    # Memory that is left unfilled is full of NaN, or of the largest numbers.
    torch.use_deterministic_algorithms(True)
    try:
        state = loaded_or_refused(path)
    finally:
        torch.use_deterministic_algorithms(False)
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
    """Of a tensor of shape 4 x 4, whose two chunks the index says to be others."""
    halves = [Chunk((row, 0), (2, 4), torch.full((2, 4), row)) for row in (0, 2)]
    save_state(path, {"w": ShardedLeaf((4, 4), torch.int64, tuple(halves))})

    def change(content):
        (chunks,) = content["leaves"].values()
        content["leaves"] = {'["w"]': [[*place, chunks[0][2]] for place in places]}

    rewrite(path, change)
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
