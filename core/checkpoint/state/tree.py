"""A state as JSON, exactly, with its tensors and arrays kept elsewhere.

Numbers, strings, None, lists, and dicts with text as keys are what they are in JSON. Everything
else is an object with one key that begins with `$`: `{"$tuple": [1, 2]}`, `{"$float": "inf"}`,
`{"$tensor": ["float32", [3, 4]]}`.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from core.checkpoint.state import array_types
from core.checkpoint.state.plain_state import (
    Encoder,
    KeyPath,
    Value,
    are_names,
    are_plain,
    check_array,
    check_int,
    check_key,
    check_text,
    check_values,
    is_key,
)
from core.checkpoint.state.shards import shape_of
from core.contract.errors import CheckpointError
from core.contract.sharded_leaf import TensorDescription
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A state in JSON, or a part of it."""

MAX_DEPTH = 128
"""The most containers in each other: both directions can walk through so many wherever they are
called.
"""

AT_ONCE: Any = object()
"""The target of a tensor that is needed while the state is being built."""

_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode

# Names of the two index tensors, in the order in which torch's constructor takes them.
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def leaf_name(key_path: KeyPath) -> str:
    """The key path of a leaf as text, by which files name it."""
    # Nearly always as it stands. Otherwise encoded as values are, so that the keys 1 and "1" make
    # two names.
    if {str}.issuperset(map(type, key_path)):
        return _TO_JSON(key_path)
    encode = JsonEncoder().encode
    return _TO_JSON([encode(part, key_path, "key") for part in key_path])


def readable(key_path: KeyPath) -> str:
    """The key path of a value for a reader: `model.0.weight`. Its keys are the checkpoint's, and
    made printable.
    """
    return printable(".".join(map(str, key_path)))


def leaves_of(value: object, key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Everything in a loaded state that isn't in a container's place, with its key path."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves_of(item, (*key_path, key))
    else:
        yield key_path, value


def is_sharded(value: object) -> bool:
    """True if this rank may have only a part of a tensor: our own form, or one of torch's
    protocols, as in DTensors.
    """
    return hasattr(value, "global_shape") or hasattr(type(value), "__create_chunk_list__")


class JsonEncoder(Encoder):
    """One walk over a state, which makes `Json` of it.

    Attributes:
        leaves: the tensors and arrays that were met, by their name. An array is a tensor of bytes.
        num_elements: of all leaves, on all ranks.
    """

    max_depth = MAX_DEPTH

    def __init__(self) -> None:
        super().__init__()
        self.leaves: dict[str, Any] = {}
        self.num_elements = 0

    def _pack(self, kind: type, content: Any) -> Json:
        return content if (pack := _PACKED.get(kind)) is None else pack(content)

    def _names(self, items: dict[Any, Json], key_path: KeyPath, path: str) -> Json:
        # Keys that aren't text, or look like one of our tags, stand in pairs.
        if all(type(key) is str and not key.startswith("$") for key in items):
            return {check_text(key, path): item for key, item in items.items()}
        return {
            "$dict": [
                [self.encode(key, key_path, f"a key of {path}"), item]
                for key, item in items.items()
            ]
        }

    def _add_metadata(
        self, encoded: dict[str, Json], metadata: Any, key_path: KeyPath, path: str
    ) -> None:
        encoded["metadata"] = self.encode(dict(metadata), key_path, path)

    def _member(self, item: object, key_path: KeyPath, path: str) -> Any:
        return self.encode(check_key(item, path), key_path, path)

    def _tensor(self, tensor: torch.Tensor, key_path: KeyPath, path: str) -> Json:
        check_values(tensor, path)
        if tensor.is_quantized:
            raise CheckpointError(
                f"{path} is a quantized tensor. Save its int_repr(), scale and zero point instead."
            )
        if tensor.layout == torch.strided:
            # A conjugated or negated view is a flag on another tensor's bytes.
            return self._leaf(tensor.detach().resolve_conj().resolve_neg(), key_path)
        if tensor.layout == torch.sparse_coo:
            # torch refuses `indices()` of a tensor that isn't coalesced.
            parts = {"indices": tensor._indices(), "values": tensor._values()}
            extra = [tensor.is_coalesced()]
        else:
            parts = {
                name: getattr(tensor, name)() for name in (*_COMPRESSED[tensor.layout], "values")
            }
            extra = []
        encoded = {
            name: self._tensor(part, (*key_path, name), path) for name, part in parts.items()
        }
        return {"$sparse": [_name_of(tensor.layout), list(tensor.shape), encoded, *extra]}

    def _other(self, value: object, key_path: KeyPath, path: str) -> Json:
        if is_sharded(value):
            return self._leaf(value, key_path)
        array = check_array(value, path)
        if type(array).__name__ != "ndarray":
            # A NumPy scalar is a few bytes, which stand in the JSON itself.
            return {"$scalar": [array.dtype.str, _text(array.tobytes())]}
        content = bytearray(array.tobytes())
        # A file has no place for a leaf without bytes.
        if content:
            self._leaf(torch.frombuffer(content, dtype=torch.uint8), key_path)
        return {"$array": [array.dtype.str, list(array.shape)]}

    def _leaf(self, leaf: Any, key_path: KeyPath) -> Json:
        self.leaves[leaf_name(key_path)] = leaf
        shape = shape_of(leaf)
        self.num_elements += math.prod(shape)
        return {"$tensor": [_name_of(leaf.dtype), list(shape)]}


def _text(content: bytes | bytearray) -> str:
    return base64.b64encode(content).decode("ascii")


def _number(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": str(value)}


@functools.cache
def _name_of(thing: torch.dtype | torch.layout) -> str:
    """`float32` for `torch.float32`."""
    return str(thing).removeprefix("torch.")


_PACKED: dict[type, Callable[[Any], Json]] = {
    OrderedDict: lambda items: {"$ordered": items},
    Counter: lambda items: {"$counter": items},
    tuple: lambda items: {"$tuple": list(items)},
    set: lambda items: {"$set": items},
    float: _number,
    complex: lambda value: {"$complex": [_number(value.real), _number(value.imag)]},
    bytes: lambda value: {"$bytes": _text(value)},
    bytearray: lambda value: {"$bytearray": _text(value)},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": _name_of(value)},
    torch.device: lambda value: {"$device": str(value)},
}


class Decoder:
    """Builds the state again.

    Args:
        tensor: asked for each tensor: `(key_path, dtype, shape, target) -> value`; None for
            descriptions of them.
        array: asked for the bytes of each array: `(key_path, size_bytes) -> buffer`.
    """

    def __init__(
        self,
        tensor: Callable[[KeyPath, torch.dtype, tuple[int, ...], object], object] | None,
        array: Callable[[KeyPath, int], bytes | memoryview],
    ) -> None:
        self._read_tensor = tensor
        self._read_array = array

    def decode(self, node: Json, key_path: KeyPath = (), target: object = None) -> Any:
        """The value that `node` stands for. What comes back can be saved again.

        Args:
            node: as `JsonEncoder` gives it.
            key_path: of the value.
            target: tensors to fill, at their places in nested dicts and lists.

        Raises:
            KeyError, TypeError, ValueError, ...: it isn't one.
        """
        if len(key_path) > MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} levels")
        if not isinstance(node, dict):
            if isinstance(node, list):
                return self._items(node, key_path, target)
            if isinstance(node, str):
                return check_text(node, "a string in it")
            return check_int(node, "a number in it") if type(node) is int else node
        # A tag comes first, and JSON keeps the order.
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            return self._mapping(node, key_path, target)
        if node.keys() - _BESIDE.get(tag, set()) != {tag}:
            raise ValueError(f"{tag} with {sorted(node)}")
        if tag == "$tensor":  # nearly all of them
            described: Any = node[tag]
            name, sizes = described
            dtype, shape = _dtype_of(name), shape_from(sizes)
            if self._read_tensor is None:
                return TensorDescription(shape, dtype)
            return self._read_tensor(key_path, dtype, shape, target)
        if (unpack := _UNPACKED.get(tag)) is not None:
            return unpack(node[tag])
        # An unknown tag is an AttributeError, as damaged as anything else that isn't known.
        return getattr(self, f"_decode_{tag[1:]}")(node[tag], key_path, target, node)

    def _mapping(
        self, nodes: dict[str, Json], key_path: KeyPath, target: object
    ) -> dict[str, object]:
        if not are_names(nodes):
            for key in nodes:
                check_text(key, "a key in it")
        targets = target if isinstance(target, dict) else {}
        return {
            key: self.decode(item, (*key_path, key), targets.get(key))
            for key, item in nodes.items()
        }

    def _items(self, nodes: list[Json], key_path: KeyPath, target: object) -> list[object]:
        if len(key_path) < MAX_DEPTH and are_plain(nodes):
            return [*nodes]
        return [
            self.decode(item, (*key_path, index), _part(target, index))
            for index, item in enumerate(nodes)
        ]

    def _key(self, node: Json) -> object:
        if not is_key(key := self.decode(node)):
            raise TypeError(f"a {type(key).__name__} as a key")
        return key

    def _decode_dict(
        self, pairs: Json, key_path: KeyPath, target: object, _: object
    ) -> dict[object, object]:
        decoded = [(self._key(key), item) for key, item in _exact(pairs, list)]
        return {
            key: self.decode(item, (*key_path, key), _part(target, key)) for key, item in decoded
        }

    def _decode_ordered(
        self, inner: Json, key_path: KeyPath, target: object, node: dict[str, Json]
    ) -> object:
        ordered = OrderedDict(_exact(self.decode(inner, key_path, target), dict))
        if "metadata" in node:
            metadata = _exact(self.decode(node["metadata"], (*key_path, "$metadata")), dict)
            ordered._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
        return ordered

    def _decode_counter(
        self, inner: Json, key_path: KeyPath, target: object, _: object
    ) -> Counter[object]:
        return Counter(_exact(self.decode(inner, key_path, target), dict))

    def _decode_tuple(
        self, items: Json, key_path: KeyPath, target: object, _: object
    ) -> tuple[object, ...]:
        return tuple(self._items(_exact(items, list), key_path, target))

    def _decode_set(self, items: Json, *_: object) -> set[object]:
        return {self._key(item) for item in _exact(items, list)}

    def _decode_complex(self, parts: Json, *_: object) -> complex:
        real, imaginary = map(self.decode, _exact(parts, list))
        return complex(float(real), float(imaginary))

    def _decode_sparse(self, described: Json, key_path: KeyPath, *_: object) -> object:
        name, shape, encoded, *extra = _exact(described, list)
        layout, encoded = torch_member(name, torch.layout), _exact(encoded, dict)
        names = (
            ("indices", "values")
            if layout == torch.sparse_coo
            else (*_COMPRESSED[layout], "values")
        )
        if tuple(encoded) != names:
            raise ValueError(f"{name} of {sorted(encoded)}")
        parts = {
            name: self.decode(part, (*key_path, name), AT_ONCE) for name, part in encoded.items()
        }
        if all(isinstance(part, TensorDescription) for part in parts.values()):
            return parts  # the state is only being described
        # Without the check, wrong indices are accesses to any memory.
        if layout == torch.sparse_coo:
            (is_coalesced,) = extra
            return torch.sparse_coo_tensor(
                **parts,
                size=shape_from(shape),
                is_coalesced=bool(is_coalesced),
                check_invariants=True,
            )
        first, second, values = parts.values()
        return torch.sparse_compressed_tensor(
            first, second, values, shape_from(shape), layout=layout, check_invariants=True
        )

    def _decode_array(self, described: Json, key_path: KeyPath, *_: object) -> object:
        code, sizes = _exact(described, list)
        dtype, shape = array_types.type_of(code), shape_from(sizes)
        num_bytes = math.prod(shape) * dtype.itemsize
        return array_types.array_of(
            dtype, shape, self._read_array(key_path, num_bytes) if num_bytes else b""
        )


def _bytes(text: Json) -> bytes:
    return base64.b64decode(_exact(text, str), validate=True)


def _scalar(described: Json) -> object:
    code, content = _exact(described, list)
    return array_types.array_of(array_types.type_of(code), (), _bytes(content))[()]


_UNPACKED: dict[str, Callable[[Json], object]] = {
    "$float": lambda text: float(_exact(text, str)),
    "$bytes": _bytes,
    "$bytearray": lambda text: bytearray(_bytes(text)),
    "$size": lambda sizes: torch.Size(shape_from(sizes)),
    "$dtype": lambda name: torch_member(name, torch.dtype),
    "$device": lambda name: torch.device(_exact(name, str)),
    "$scalar": _scalar,
}

_BESIDE = {"$ordered": {"metadata"}}
"""The keys that may stand beside a tag."""

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
"""Types whose elements mean nothing without a scale, which isn't there."""

_MAX_SIZE = 2**63


def _exact(value: object, kind: type[Value]) -> Value:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__}, where a {kind.__name__} was expected")
    return value


def shape_from(sizes: Json) -> tuple[int, ...]:
    """Sizes or offsets that a file names.

    Raises:
        TypeError, ValueError: they aren't a list of numbers, none of which is negative.
    """
    if not isinstance(sizes, list):
        raise TypeError(f"a {type(sizes).__name__} as a shape")
    shape: tuple[Any, ...] = tuple(sizes)
    for size in shape:
        if type(size) is not int or not 0 <= size < _MAX_SIZE:
            raise ValueError(f"{size!r} in a shape")
    return shape


@functools.cache
def _dtype_of(name: str) -> torch.dtype:
    """The type of a tensor's elements, if a tensor can have it as it is."""
    if (dtype := torch_member(name, torch.dtype)) in _QUANTIZED:
        raise ValueError(f"a tensor of type {name}")
    return dtype


def torch_member(name: Json, kind: type[Value]) -> Value:
    """`torch.float32` for `float32`.

    Raises:
        TypeError, ValueError: this torch has none of that name and kind.
    """
    # Not by getattr, which imports parts of torch for some names.
    if not isinstance(member := vars(torch).get(_exact(name, str)), kind):
        raise ValueError(f"torch {torch.__version__} has no {kind.__name__} {name!r}")
    return member


def _part(target: object, key: object) -> object:
    if isinstance(target, dict):
        return target.get(key)
    if isinstance(target, list | tuple) and type(key) is int and key < len(target):
        return target[key]
    return None
