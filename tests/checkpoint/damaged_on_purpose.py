"""Checkpoint folders that somebody has changed on purpose: all digests in them are right."""

import contextlib
import copy
import json
import math
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import torch

from core.checkpoint.format import digest, manifest
from core.contract import Chunk, ShardedLeaf

JUNK = [
    *(
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
    ),
    *(
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
    ),
    *(
        "sparse_csr",
        "nan",
        "cuda:99",
        "AAAA",
        "../x",
        "1" * 5000,
        "_dynamo",
        {"$array": ["<f8", "QUFBQUFBQUE="]},
    ),
]
TAGS = [
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
        "plain": [None, -0.5, float("inf"), 1 + 2j, b"bytes", bytearray(b"x"), (1, (2,)), {4, "a"}],
        "keys": {(1, "a"): 2, None: 5, "$x": 1},
        "classes": [
            OrderedDict(a=1),
            Counter("aab"),
            torch.Size([2]),
            torch.float16,
            torch.device("cpu"),
        ],
    }


def read_index(path):
    """The index of rank 0, and its content."""
    (file,) = path.glob("*-00000.json")
    return file, json.loads(file.read_bytes())


def change_anywhere(content, random):
    """Another value in some place of JSON: junk, one of another place, or its own with a tag; or
    none.
    """
    (holder, key), (other, other_key) = random.choices([*_places(content)], k=2)
    value = copy.deepcopy(
        random.choice([random.choice(JUNK), other[other_key], {random.choice(TAGS): holder[key]}])
    )
    if random.random() < 0.2:
        del holder[key]
    else:
        holder[key] = value


def _places(value):
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield value, key
        yield from _places(item)


def write_index(path, raw):
    """Replace the index of rank 0, and what the manifest says of it."""
    (file,) = path.glob("*-00000.json")
    file.write_bytes(raw)
    blocks = [
        digest.of_bytes(raw[at : at + digest.BLOCK_BYTES])
        for at in range(0, len(raw), digest.BLOCK_BYTES)
    ]
    found = read_manifest(path)
    found["files"][file.name] = {"size_bytes": len(raw), "digest": digest.of_blocks(blocks)}
    write_manifest(path, found)


def read_manifest(path):
    """Content of the manifest, without its checksum."""
    content = json.loads((path / manifest.NAME).read_bytes())
    content.pop("checksum")
    return content


def write_manifest(path, content):
    """Replace the manifest, whose checksum is right."""
    (path / manifest.NAME).write_bytes(manifest._sealed(content))


@contextlib.contextmanager
def bounded_memory(num_bytes):
    """In which the process must not need so much memory more than it has."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS:")
    yield
    assert _resident("VmHWM:") - before < num_bytes


def _resident(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
