"""A state as JSON, exactly, with its tensors and arrays kept elsewhere.

Numbers, strings, None, lists, and dicts with text as keys are what they are in JSON. Everything else is an object with
one key that begins with `$`: `{"$tuple": [1, 2]}`, `{"$float": "inf"}`, `{"$tensor": ["float32", [3, 4]]}`.
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
from core.contract.sharded_leaf import ShardedLeaf, TensorDescription
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KeyPath: TypeAlias = tuple[Any, ...]
"""Keys and indices that lead to a value: `("model", "0.weight")`."""

MAX_DEPTH = 128
"""The most containers in each other: both directions can walk through so many wherever they are called."""

AT_ONCE: Any = object()
"""The target of a tensor that is needed while the state is being built."""

_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode

_DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_AS_IS = (type(None), bool, str)
# Names of the two index tensors, in the order in which torch's constructor takes them.
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def leaf_name(key_path: KeyPath) -> str:
    """The key path of a leaf as text, by which files name it."""
    # Nearly always as it stands. Otherwise encoded as values are, so that the keys 1 and "1" make two names.
    if {str}.issuperset(map(type, key_path)):
        return _TO_JSON(key_path)
    return _TO_JSON([Encoder().encode(part, key_path, "key") for part in key_path])


def readable(key_path: KeyPath) -> str:
    """The key path of a value for a reader: `model.0.weight`. Its keys are the checkpoint's, and made printable."""
    return printable(".".join(map(str, key_path)))


def leaves_of(value: Any, key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Everything in a loaded state that isn't in a container's place, with its key path."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        yield key_path, value
        return
    for key, item in items:
        yield from leaves_of(item, (*key_path, key))


def is_sharded(value: Any) -> bool:
    """True if this rank may have only a part of a tensor: our own form, or torch's protocol, as in DTensors."""
    return isinstance(value, ShardedLeaf) or hasattr(type(value), "__create_chunk_list__")


class Encoder:
    """One walk over a state.

    Attributes:
        leaves: the tensors and arrays that were met, by their name. An array is a tensor of bytes.
        shapes: of the whole of each leaf.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def encode(self, value: Any, key_path: KeyPath, path: str) -> Any:
        """Encode `value` for JSON.

        Raises:
            CheckpointError: it, or something in it, is of a type that can't be saved; its path is named.
            RecursionError: it is nested too deeply.
        """
        if len(key_path) > MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} levels")
        # Exact types: a subclass, such as a named tuple or an enum, needs its class to come back.
        kind = type(value)
        if kind in _AS_IS:
            return check_text(value, path) if kind is str else value
        if kind is int:
            return check_int(value, path)
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is list:
            return self._items(value, key_path, path)
        if kind is dict:
            return self._mapping(value, key_path, path)
        if (encode := _ENCODERS.get(kind)) is not None:
            return encode(self, value, key_path, path)
        if is_sharded(value):
            return self._leaf(value, key_path)
        return self._array(value, key_path, path)

    def _items(self, value: Any, key_path: KeyPath, path: str) -> list[Any]:
        if len(key_path) < MAX_DEPTH and are_plain(value):  # at the limit, each item is one too deep
            return list(value)
        return [self.encode(item, (*key_path, index), f"{path}[{index}]") for index, item in enumerate(value)]

    def _mapping(self, value: Any, key_path: KeyPath, path: str) -> dict[str, Any]:
        if are_names(value):
            encoded = {}
            for key, item in value.items():
                encoded[key] = self.encode(item, (*key_path, key), f"{path}[{key!r}]")
            return encoded
        pairs = [
            (check_key(key, path), self.encode(item, (*key_path, key), f"{path}[{key!r}]"))
            for key, item in value.items()
        ]
        # Keys that aren't text, or look like one of our tags, stand in pairs.
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            return {check_text(key, path): item for key, item in pairs}
        return {"$dict": [[self.encode(key, key_path, f"a key of {path}"), item] for key, item in pairs]}

    def _ordered(self, value: Any, key_path: KeyPath, path: str) -> dict[str, Any]:
        encoded = {"$ordered": self._mapping(value, key_path, path)}
        # A module's state_dict carries the versions of its submodules in an attribute.
        if metadata := getattr(value, "_metadata", None):
            encoded["metadata"] = self.encode(dict(metadata), (*key_path, "$metadata"), f"{path}._metadata")
        return encoded

    def _tensor(self, tensor: torch.Tensor, key_path: KeyPath, path: str) -> dict[str, Any]:
        check_values(tensor, path)
        if tensor.is_quantized:
            raise CheckpointError(f"{path} is a quantized tensor. Save its int_repr(), scale and zero point instead.")
        if tensor.layout == torch.strided:
            # A conjugated or negated view is a flag on another tensor's bytes.
            return self._leaf(tensor.detach().resolve_conj().resolve_neg(), key_path)
        return self._sparse(tensor.detach(), key_path, path)

    def _sparse(self, tensor: torch.Tensor, key_path: KeyPath, path: str) -> dict[str, Any]:
        if tensor.layout == torch.sparse_coo:
            # torch refuses `indices()` of a tensor that isn't coalesced.
            parts = {"indices": tensor._indices(), "values": tensor._values()}
            extra = [tensor.is_coalesced()]
        else:
            parts = {name: getattr(tensor, name)() for name in (*_COMPRESSED[tensor.layout], "values")}
            extra = []
        encoded = {name: self._tensor(part, (*key_path, name), path) for name, part in parts.items()}
        return {"$sparse": [_name_of(tensor.layout), list(tensor.shape), encoded, *extra]}

    def _leaf(self, leaf: Any, key_path: KeyPath) -> dict[str, Any]:
        self._add(key_path, leaf, shape := shape_of(leaf))
        return {"$tensor": [_name_of(leaf.dtype), list(shape)]}

    def _add(self, key_path: KeyPath, leaf: Any, shape: tuple[int, ...]) -> None:
        self.leaves[name := leaf_name(key_path)] = leaf
        self.shapes[name] = shape

    def _array(self, value: Any, key_path: KeyPath, path: str) -> dict[str, Any]:
        array = check_array(value, path)
        if type(array).__name__ != "ndarray":
            # A NumPy scalar is a few bytes, which stand in the JSON itself.
            return {"$scalar": [array.dtype.str, _text(array.tobytes())]}
        content = bytearray(array.tobytes())
        # A file has no place for a leaf without bytes.
        if content:
            self._add(key_path, torch.frombuffer(content, dtype=torch.uint8), (len(content),))
        return {"$array": [array.dtype.str, list(array.shape)]}


def _text(content: Any) -> str:
    return base64.b64encode(content).decode("ascii")


@functools.cache
def _name_of(thing: Any) -> str:
    """`float32` for `torch.float32`."""
    return str(thing).removeprefix("torch.")


_ENCODERS: dict[type, Callable[[Encoder, Any, KeyPath, str], Any]] = {
    **dict.fromkeys(_DENSE, Encoder._tensor),
    OrderedDict: Encoder._ordered,
    Counter: lambda self, value, key_path, path: {"$counter": self._mapping(value, key_path, path)},
    tuple: lambda self, value, key_path, path: {"$tuple": self._items(value, key_path, path)},
    set: lambda self, value, key_path, path: {
        "$set": [self.encode(check_key(item, path), key_path, path) for item in value]
    },
    complex: lambda self, value, key_path, path: {
        "$complex": [self.encode(part, key_path, path) for part in (value.real, value.imag)]
    },
    bytes: lambda self, value, key_path, path: {"$bytes": _text(value)},
    bytearray: lambda self, value, key_path, path: {"$bytearray": _text(value)},
    torch.Size: lambda self, value, key_path, path: {"$size": list(value)},
    torch.dtype: lambda self, value, key_path, path: {"$dtype": _name_of(value)},
    torch.device: lambda self, value, key_path, path: {"$device": str(value)},
}


class Decoder:
    """Builds the state again.

    Args:
        tensor: asked for each tensor: `(key_path, dtype, shape, target) -> value`; None for descriptions of them.
        array: asked for the bytes of each array: `(key_path, size_bytes) -> buffer`.
    """

    def __init__(
        self,
        tensor: Callable[[KeyPath, torch.dtype, tuple[int, ...], Any], Any] | None,
        array: Callable[[KeyPath, int], Any],
    ) -> None:
        self._read_tensor = tensor
        self._read_array = array

    def decode(self, node: Any, key_path: KeyPath = (), target: Any = None) -> Any:
        """The value that `node` stands for. What comes back can be saved again.

        Args:
            node: as `Encoder` gives it.
            key_path: of the value.
            target: tensors to fill, at their places in nested dicts and lists.

        Raises:
            KeyError, TypeError, ValueError, ...: it isn't one.
        """
        if len(key_path) > MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} levels")
        kind = type(node)
        if kind is list:
            return self._items(node, key_path, target)
        if kind is not dict:
            return _plain(node, kind)
        # A tag comes first, and JSON keeps the order.
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            return self._mapping(node, key_path, target)
        if node.keys() - _BESIDE.get(tag, set()) != {tag}:
            raise ValueError(f"{tag} with {sorted(node)}")
        if tag == "$tensor":  # nearly all of them
            name, shape = described if type(described := node[tag]) is list else _list(described)
            dtype, shape = _dtype_of(name), shape_from(shape)
            if self._read_tensor is None:
                return TensorDescription(shape, dtype)
            return self._read_tensor(key_path, dtype, shape, target)
        # An unknown tag is an AttributeError, as damaged as anything else that isn't known.
        return getattr(self, f"_decode_{tag[1:]}")(node[tag], key_path, target, node)

    def _mapping(self, nodes: dict[str, Any], key_path: KeyPath, target: Any) -> dict[str, Any]:
        if not are_names(nodes):
            for key in nodes:
                check_text(key, "a key in it")
        targets = target if isinstance(target, dict) else {}
        decoded = {}
        for key, item in nodes.items():
            decoded[key] = self.decode(item, (*key_path, key), targets.get(key))
        return decoded

    def _items(self, nodes: Any, key_path: KeyPath, target: Any = None) -> list[Any]:
        if len(key_path) < MAX_DEPTH and are_plain(_list(nodes)):
            return list(nodes)
        return [self._item(item, key_path, index, target) for index, item in enumerate(_list(nodes))]

    def _item(self, node: Any, key_path: KeyPath, key: Any, target: Any) -> Any:
        return self.decode(node, (*key_path, key), _part(target, key))

    def _key(self, node: Any) -> Any:
        if not is_key(key := self.decode(node)):
            raise TypeError(f"a {type(key).__name__} as a key")
        return key

    def _dict(self, node: Any, key_path: KeyPath, target: Any = None) -> dict[Any, Any]:
        if type(decoded := self.decode(node, key_path, target)) is not dict:
            raise TypeError(f"a {type(decoded).__name__}, where a dict was expected")
        return decoded

    def _decode_dict(self, pairs: Any, key_path: KeyPath, target: Any, _: Any) -> dict[Any, Any]:
        decoded = [(self._key(key), item) for key, item in map(_list, _list(pairs))]
        return {key: self._item(item, key_path, key, target) for key, item in decoded}

    def _decode_ordered(self, inner: Any, key_path: KeyPath, target: Any, node: Any) -> Any:
        ordered = OrderedDict(self._dict(inner, key_path, target))
        if "metadata" in node:
            metadata = self._dict(node["metadata"], (*key_path, "$metadata"))
            ordered._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
        return ordered

    def _decode_counter(self, inner: Any, key_path: KeyPath, target: Any, _: Any) -> Any:
        return Counter(self._dict(inner, key_path, target))

    def _decode_tuple(self, items: Any, key_path: KeyPath, target: Any, _: Any) -> Any:
        return tuple(self._items(items, key_path, target))

    def _decode_set(self, items: Any, *_: Any) -> Any:
        return {self._key(item) for item in _list(items)}

    def _decode_float(self, text: Any, *_: Any) -> float:
        return float(_text_of(text))

    def _decode_complex(self, parts: Any, *_: Any) -> complex:
        real, imaginary = map(self.decode, _list(parts))
        return complex(float(real), float(imaginary))

    def _decode_bytes(self, text: Any, *_: Any) -> bytes:
        return base64.b64decode(_text_of(text), validate=True)

    def _decode_bytearray(self, text: Any, *_: Any) -> bytearray:
        return bytearray(self._decode_bytes(text))

    def _decode_size(self, sizes: Any, *_: Any) -> torch.Size:
        return torch.Size(shape_from(sizes))

    def _decode_dtype(self, name: Any, *_: Any) -> torch.dtype:
        return torch_member(name, torch.dtype)  # type: ignore[no-any-return]

    def _decode_device(self, name: Any, *_: Any) -> torch.device:
        return torch.device(_text_of(name))

    def _decode_sparse(self, described: Any, key_path: KeyPath, *_: Any) -> Any:
        layout, shape, encoded, *extra = _list(described)
        names = ("indices", "values") if layout == "sparse_coo" else (*_COMPRESSED[torch_layout(layout)], "values")
        if tuple(encoded) != names:
            raise ValueError(f"{layout} of {sorted(encoded)}")
        parts = {name: self.decode(part, (*key_path, name), AT_ONCE) for name, part in encoded.items()}
        if all(isinstance(part, TensorDescription) for part in parts.values()):
            return parts  # the state is only being described
        # Without the check, wrong indices are accesses to any memory.
        if layout == "sparse_coo":
            (is_coalesced,) = extra
            return torch.sparse_coo_tensor(
                **parts, size=shape_from(shape), is_coalesced=bool(is_coalesced), check_invariants=True
            )
        first, second, values = parts.values()
        return torch.sparse_compressed_tensor(
            first, second, values, shape_from(shape), layout=torch_layout(layout), check_invariants=True
        )

    def _decode_array(self, described: Any, key_path: KeyPath, *_: Any) -> Any:
        code, sizes = _list(described)
        dtype, shape = array_types.type_of(code), shape_from(sizes)
        num_bytes = math.prod(shape) * dtype.itemsize
        return array_types.array_of(dtype, shape, self._read_array(key_path, num_bytes) if num_bytes else b"")

    def _decode_scalar(self, described: Any, *_: Any) -> Any:
        code, content = _list(described)
        return array_types.array_of(array_types.type_of(code), (), self._decode_bytes(content))[()]


_BESIDE = {"$ordered": {"metadata"}}
"""The keys that may stand beside a tag."""

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
"""Types whose elements mean nothing without a scale, which isn't there."""

_MAX_SIZE = 2**63


def _plain(value: Any, kind: type) -> Any:
    if kind is str:
        return check_text(value, "a string in it")
    return check_int(value, "a number in it") if kind is int else value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"a {type(value).__name__}, where a list was expected")
    return value


def _text_of(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__}, where a string was expected")
    return value


def shape_from(sizes: Any) -> tuple[int, ...]:
    """Sizes or offsets that a file names.

    Raises:
        TypeError, ValueError: they aren't a list of numbers, none of which is negative.
    """
    for size in sizes if type(sizes) is list else _list(sizes):
        if type(size) is not int or not 0 <= size < _MAX_SIZE:
            raise ValueError(f"{size!r} in a shape")
    return tuple(sizes)


@functools.cache
def _dtype_of(name: str) -> torch.dtype:
    """The type of a tensor's elements.

    Raises:
        ValueError: this torch has none of that name, or no tensor has it as it is.
    """
    if (dtype := torch_member(name, torch.dtype)) in _QUANTIZED:
        raise ValueError(f"a tensor of type {name}")
    return dtype  # type: ignore[no-any-return]


def torch_layout(name: Any) -> Any:
    """`torch.sparse_csr` for `sparse_csr`."""
    return torch_member(name, torch.layout)


def torch_member(name: Any, kind: type) -> Any:
    """`torch.float32` for `float32`.

    Raises:
        TypeError, ValueError: this torch has none of that name and kind.
    """
    # Not by getattr, which imports parts of torch for some names.
    if not isinstance(member := vars(torch).get(_text_of(name)), kind):
        raise ValueError(f"torch {torch.__version__} has no {kind.__name__} {name!r}")
    return member


def _part(target: Any, key: Any) -> Any:
    if target is None:
        return None
    if isinstance(target, dict):
        return target.get(key)
    if isinstance(target, list | tuple) and type(key) is int and key < len(target):
        return target[key]
    return None
