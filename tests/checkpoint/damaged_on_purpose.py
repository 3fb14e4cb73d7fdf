"""Checkpoint folders that somebody has changed on purpose: all digests in them are right."""

import contextlib
import copy
import json
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import torch

from core.checkpoint.format import digest, manifest
from core.contract import Chunk, ShardedLeaf

NUMBERS = [0, -1, 1, 2, 3, 7, 63, 64, 2**31, 2**40, 2**60, 2**62, 2**63, 2**64 + 1, 10**300, -(2**63), 0.5, 1e308]
WORDS = [
    *(
        "|O",
        "O",
        "<f4",
        ">f4",
        "<U3",
        "<U900000000",
        "|S0",
        "|V8",
        "<M8[s]",
        "f4,O",
        "(3,)O",
        "\ud800",
        "",
        "$",
        "$tuple",
    ),
    *("float32", "quint8", "uint1", "bits8", "complex32", "float4_e2m1fn_x2", "strided", "sparse_coo", "sparse_csr"),
    *("nan", "cuda:99", "AAAA", "=", "../x", "1" * 5000, "_dynamo", '["dense"]', "é"),
]
TAGS = [
    *("tensor", "array", "scalar", "sparse", "dict", "ordered", "counter", "tuple", "set", "float", "complex"),
    *("bytes", "bytearray", "size", "dtype", "device", "unknown", "_init__"),
]


def everything():
    """A state with each kind of value in it. No byte of its tensors and arrays is above 63."""

    def numbers(*shape, dtype=torch.float32):
        size = int(np.prod(shape)) * dtype.itemsize
        return (torch.arange(size) % 61 + 1).to(torch.uint8).view(dtype).reshape(shape)

    whole = numbers(4, 6)
    boxes = [((0, 0), (1, 6)), ((1, 0), (3, 2)), ((1, 2), (3, 4))]
    chunks = tuple(Chunk(*box, whole[Chunk(*box, None).box].clone()) for box in boxes)
    ordered = OrderedDict(a=1)
    ordered._metadata = OrderedDict({"": {"version": 1}})
    indices, values = torch.tensor([[0, 1], [2, 0]]), numbers(2)
    return {
        "dense": numbers(3, 5),
        "half": numbers(4, dtype=torch.bfloat16),
        "scalar": numbers(1, dtype=torch.int64)[0],
        "empty": torch.empty(0, 3),
        "boxes": ShardedLeaf((4, 6), torch.float32, chunks),
        "again": ShardedLeaf((4, 6), torch.float32, chunks),
        "coo": torch.sparse_coo_tensor(indices, values, (2, 3)).coalesce(),
        "csr": torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 2]), values, (2, 3)),
        "arrays": [numbers(2, 3).numpy(), np.array(["12", "3"]), np.float64(0.5), np.str_("x"), np.zeros((0, 2))],
        "plain": [None, True, 3, -0.5, float("inf"), 1 + 2j, "text", b"bytes", bytearray(b"x"), (1, (2,)), {4, "a"}],
        "keys": {(1, "a"): 2, 3: [4], None: 5, "$x": 1},
        "classes": [ordered, Counter("aab"), torch.Size([2]), torch.float16, torch.device("cpu")],
    }


def read_index(path):
    """The index of rank 0, and its content."""
    (file,) = path.glob("*-00000.json")
    return file, json.loads(file.read_bytes())


def write_index(path, raw):
    """Replace the index of rank 0, and what the manifest says of it."""
    (file,) = path.glob("*-00000.json")
    file.write_bytes(raw)
    blocks = [digest.of_bytes(raw[at : at + digest.BLOCK_BYTES]) for at in range(0, len(raw), digest.BLOCK_BYTES)]
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


def mutated(content, random, num_changes):
    """A copy of JSON with changes anywhere in it."""
    root = [copy.deepcopy(content)]
    for _ in range(num_changes):
        places = list(_places(root[0], root, 0))
        holder, key = random.choice(places)
        change = random.randrange(6)
        if change == 0:
            holder[key] = _junk(random)
        elif change == 1 and holder is not root:
            del holder[key]
        elif change == 2:
            other, other_key = random.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        elif change == 3 and type(holder[key]) is int:
            holder[key] += random.choice([-1, 1, 64, -64])
        elif change == 4:
            holder[key] = {f"${random.choice(TAGS)}": holder[key]}
        elif isinstance(holder[key], list):
            holder[key].append(_junk(random))
        elif isinstance(holder[key], dict):
            holder[key][random.choice(WORDS)] = _junk(random)
    return root[0]


def _places(value, holder, key):
    yield holder, key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for inner, item in list(items):
        yield from _places(item, value, inner)


def _junk(random):
    kind = random.randrange(6)
    if kind == 0:
        return random.choice([None, True, [], {}, [[]], [0], float("nan")])
    if kind < 3:
        return random.choice(NUMBERS)
    if kind < 5:
        return random.choice(WORDS)
    content = random.choice(["QUFBQUFBQUE=", [2]])
    return {f"${random.choice(TAGS)}": [random.choice(WORDS), content]}


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
