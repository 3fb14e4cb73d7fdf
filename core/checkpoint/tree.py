"""A state as JSON, exactly, with its tensors and arrays kept elsewhere.

Numbers, strings, None, lists, and dicts with text as keys are what they are in JSON. Everything else is an object with
one key that begins with `$`: `{"$tuple": [1, 2]}`, `{"$float": "inf"}`, `{"$tensor": ["float32", [3, 4]]}`.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from core.checkpoint.plain_state import check_array, check_int, check_key, check_text
from core.contract.errors import CheckpointError
from core.contract.sharded_leaf import ShardedLeaf

if TYPE_CHECKING:
    from collections.abc import Callable

Place: TypeAlias = tuple[Any, ...]
"""Keys and indices that lead to a value: `("model", "0.weight")`."""

_DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_AS_IS = (type(None), bool, str)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def leaf_name(place: Place) -> str:
    """The place of a leaf as text, by which files name it."""
    return json.dumps([Encoder().encode(part, place, "key") for part in place], separators=(",", ":"))


def readable(place: Place) -> str:
    """The place of a value for a reader: `model.0.weight`."""
    return ".".join(map(str, place))


def is_sharded(value: Any) -> bool:
    """Whether this rank may have a part of a tensor only: our own form, or torch's protocol, as DTensors have it."""
    return isinstance(value, ShardedLeaf) or hasattr(type(value), "__create_chunk_list__")


class Encoder:
    """One walk over a state.

    Attributes:
        leaves: the tensors and arrays that were met, by their name. An array is a tensor of bytes.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}

    def encode(self, value: Any, place: Place, path: str) -> Any:
        """What stands for `value` in JSON.

        Raises:
            CheckpointError: it, or something in it, is of a type that can't be saved; its path is named.
        """
        # Exact types: a subclass, such as a named tuple or an enum, needs its class to come back.
        kind = type(value)
        if kind in _AS_IS:
            return check_text(value, path) if kind is str else value
        if kind is int:
            return check_int(value, path)
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is list:
            return self._items(value, place, path)
        if kind is dict:
            return self._mapping(value, place, path)
        if (encode := _ENCODERS.get(kind)) is not None:
            return encode(self, value, place, path)
        if is_sharded(value):
            return self._leaf(value, place)
        return self._array(value, place, path)

    def _items(self, value: Any, place: Place, path: str) -> list[Any]:
        return [self.encode(item, (*place, index), f"{path}[{index}]") for index, item in enumerate(value)]

    def _mapping(self, value: Any, place: Place, path: str) -> dict[str, Any]:
        pairs = [
            (check_key(key, path), self.encode(item, (*place, key), f"{path}[{key!r}]")) for key, item in value.items()
        ]
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            return {check_text(key, path): item for key, item in pairs}
        return {"$dict": [[self.encode(key, place, f"a key of {path}"), item] for key, item in pairs]}

    def _ordered(self, value: Any, place: Place, path: str) -> dict[str, Any]:
        encoded = {"$ordered": self._mapping(value, place, path)}
        # A module's state_dict carries the versions of its submodules in an attribute.
        if metadata := getattr(value, "_metadata", None):
            encoded["metadata"] = self.encode(dict(metadata), (*place, "$metadata"), f"{path}._metadata")
        return encoded

    def _tensor(self, tensor: torch.Tensor, place: Place, path: str) -> dict[str, Any]:
        if tensor.is_meta:
            raise CheckpointError(
                f"{path} is a tensor on the meta device, which has no values to save. Materialize the module before."
            )
        if tensor.is_quantized:
            raise CheckpointError(f"{path} is a quantized tensor. Save its int_repr(), scale and zero point instead.")
        if tensor.layout == torch.strided:
            return self._leaf(tensor.detach().resolve_conj().resolve_neg(), place)
        return self._sparse(tensor.detach(), place, path)

    def _sparse(self, tensor: torch.Tensor, place: Place, path: str) -> dict[str, Any]:
        if tensor.layout == torch.sparse_coo:
            parts = {"indices": tensor._indices(), "values": tensor._values()}
            extra = [tensor.is_coalesced()]
        else:
            parts = {name: getattr(tensor, name)() for name in (*_COMPRESSED[tensor.layout], "values")}
            extra = []
        encoded = {name: self._tensor(part, (*place, name), path) for name, part in parts.items()}
        return {"$sparse": [_name_of(tensor.layout), list(tensor.shape), encoded, *extra]}

    def _leaf(self, leaf: Any, place: Place) -> dict[str, Any]:
        self.leaves[leaf_name(place)] = leaf
        shape = leaf.global_shape if isinstance(leaf, ShardedLeaf) else leaf.shape
        return {"$tensor": [_name_of(leaf.dtype), list(shape)]}

    def _array(self, value: Any, place: Place, path: str) -> dict[str, Any]:
        array = check_array(value, path)
        if type(array).__name__ != "ndarray":
            return {"$scalar": [array.dtype.str, _text(array.tobytes())]}
        content = bytearray(array.tobytes())
        if content:
            self.leaves[leaf_name(place)] = torch.frombuffer(content, dtype=torch.uint8)
        return {"$array": [array.dtype.str, list(array.shape)]}


def _text(content: Any) -> str:
    return base64.b64encode(content).decode("ascii")


def _name_of(thing: Any) -> str:
    """`float32` for `torch.float32`."""
    return str(thing).removeprefix("torch.")


_ENCODERS: dict[type, Callable[[Encoder, Any, Place, str], Any]] = {
    **dict.fromkeys(_DENSE, Encoder._tensor),
    OrderedDict: Encoder._ordered,
    Counter: lambda self, value, place, path: {"$counter": self._mapping(value, place, path)},
    tuple: lambda self, value, place, path: {"$tuple": self._items(value, place, path)},
    set: lambda self, value, place, path: {"$set": [self.encode(check_key(item, path), place, path) for item in value]},
    complex: lambda self, value, place, path: {
        "$complex": [self.encode(part, place, path) for part in (value.real, value.imag)]
    },
    bytes: lambda self, value, place, path: {"$bytes": _text(value)},
    bytearray: lambda self, value, place, path: {"$bytearray": _text(value)},
    torch.Size: lambda self, value, place, path: {"$size": list(value)},
    torch.dtype: lambda self, value, place, path: {"$dtype": _name_of(value)},
    torch.device: lambda self, value, place, path: {"$device": str(value)},
}


class Decoder:
    """Builds the state again.

    Args:
        tensor: asked for each tensor: `(place, dtype, shape, target) -> value`.
        array: asked for the bytes of each array: `(place, size_bytes) -> buffer`.
    """

    def __init__(
        self,
        tensor: Callable[[Place, torch.dtype, tuple[int, ...], Any], Any],
        array: Callable[[Place, int], Any],
    ) -> None:
        self._read_tensor = tensor
        self._read_array = array

    def decode(self, node: Any, place: Place = (), target: Any = None) -> Any:
        """The value that `node` stands for.

        Args:
            node: as `Encoder` gives it.
            place: of the value.
            target: tensors to fill, at their places in nested dicts and lists.

        Raises:
            KeyError, TypeError, ValueError, ...: it isn't one.
        """
        if type(node) is list:
            return self._items(node, place, target)
        if type(node) is not dict:
            return node
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            return {key: self._item(item, place, key, target) for key, item in node.items()}
        return getattr(self, f"_decode_{tag[1:]}")(node[tag], place, target, node)

    def _items(self, nodes: list[Any], place: Place, target: Any) -> list[Any]:
        return [self._item(item, place, index, target) for index, item in enumerate(nodes)]

    def _item(self, node: Any, place: Place, key: Any, target: Any) -> Any:
        return self.decode(node, (*place, key), _part(target, key))

    def _decode_dict(self, pairs: list[Any], place: Place, target: Any, _: Any) -> dict[Any, Any]:
        decoded = [(self.decode(key), item) for key, item in pairs]
        return {key: self._item(item, place, key, target) for key, item in decoded}

    def _decode_ordered(self, inner: Any, place: Place, target: Any, node: Any) -> Any:
        ordered = OrderedDict(self.decode(inner, place, target))
        if "metadata" in node:
            metadata = self.decode(node["metadata"], (*place, "$metadata"))
            ordered._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
        return ordered

    def _decode_counter(self, inner: Any, place: Place, target: Any, _: Any) -> Any:
        return Counter(self.decode(inner, place, target))

    def _decode_tuple(self, items: Any, place: Place, target: Any, _: Any) -> Any:
        return tuple(self._items(items, place, target))

    def _decode_set(self, items: Any, *_: Any) -> Any:
        return {self.decode(item) for item in items}

    def _decode_float(self, text: str, *_: Any) -> float:
        return float(text)

    def _decode_complex(self, parts: Any, *_: Any) -> complex:
        return complex(*map(self.decode, parts))

    def _decode_bytes(self, text: str, *_: Any) -> bytes:
        return base64.b64decode(text, validate=True)

    def _decode_bytearray(self, text: str, *_: Any) -> bytearray:
        return bytearray(self._decode_bytes(text))

    def _decode_size(self, sizes: Any, *_: Any) -> torch.Size:
        return torch.Size(sizes)

    def _decode_dtype(self, name: str, *_: Any) -> torch.dtype:
        return torch_member(name, torch.dtype)  # type: ignore[no-any-return]

    def _decode_device(self, name: str, *_: Any) -> torch.device:
        return torch.device(name)

    def _decode_tensor(self, described: Any, place: Place, target: Any, _: Any) -> Any:
        dtype, shape = described
        return self._read_tensor(place, torch_member(dtype, torch.dtype), tuple(shape), target)

    def _decode_sparse(self, described: Any, place: Place, *_: Any) -> Any:
        layout, shape, encoded, *extra = described
        parts = {name: self.decode(part, (*place, name)) for name, part in encoded.items()}
        if not isinstance(parts["values"], torch.Tensor):
            return parts  # the state is only being described
        # Without the check, wrong indices are accesses to any memory.
        if layout == "sparse_coo":
            return torch.sparse_coo_tensor(**parts, size=shape, is_coalesced=extra[0], check_invariants=True)
        layout = torch_member(layout, torch.layout)
        first, second = (parts[name] for name in _COMPRESSED[layout])
        values = parts["values"]
        return torch.sparse_compressed_tensor(first, second, values, shape, layout=layout, check_invariants=True)

    def _decode_array(self, described: Any, place: Place, *_: Any) -> Any:
        import numpy

        code, shape = described
        dtype = numpy.dtype(code)
        num_bytes = math.prod(shape) * dtype.itemsize
        if not num_bytes:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(self._read_array(place, num_bytes), dtype).reshape(shape).copy()

    def _decode_scalar(self, described: Any, *_: Any) -> Any:
        import numpy

        dtype, content = numpy.dtype(described[0]), self._decode_bytes(described[1])
        return numpy.ndarray((), dtype, content)[()] if content else dtype.type()


def torch_member(name: str, kind: type) -> Any:
    """`torch.float32` for `float32`.

    Raises:
        ValueError: this torch has none of that name and kind.
    """
    if not isinstance(member := getattr(torch, name, None), kind):
        raise ValueError(f"torch {torch.__version__} has no {kind.__name__} {name!r}")
    return member


def _part(target: Any, key: Any) -> Any:
    if isinstance(target, dict):
        return target.get(key)
    if isinstance(target, list | tuple) and type(key) is int and key < len(target):
        return target[key]
    return None
