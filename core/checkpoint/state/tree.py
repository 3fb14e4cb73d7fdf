"""A state as JSON, exactly, with its tensors and arrays kept elsewhere.

Numbers, strings, None, lists, and dicts with text as keys are what they are in JSON. Everything
else is an object whose first key begins with `$`: `{"$tuple": [1, 2]}`, `{"$float": "inf"}`,
`{"$tensor": ["float32", [3, 4]]}`. The table `_FORMS` has all of them, both ways.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import sys
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from core.checkpoint.state import array_types
from core.checkpoint.state.checks import (
    are_names,
    are_plain,
    check_int,
    check_key,
    check_tensor,
    check_text,
    path_of,
    refusal,
)
from core.checkpoint.state.shards import is_sharded, shape_of
from core.contract.errors import CheckpointError
from core.contract.sharded_leaf import TensorDescription
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core.checkpoint.state.checks import KeyPath

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A state in JSON, or a part of it."""

MAX_DEPTH = 128
"""The most containers in each other: both directions can walk through so many wherever they are
called.
"""

AT_ONCE: Any = object()
"""The target of a tensor that is needed while the state is being built."""

_DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
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
    encode = Encoder().encode
    return _TO_JSON([encode(part, ()) for part in key_path])


def readable(key_path: KeyPath) -> str:
    """The key path of a value for a reader: `model.0.weight`. Its keys are the checkpoint's, and
    made printable.
    """
    return printable(".".join(map(str, key_path)))


def leaves_of(value: object, key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Everything in a loaded state that isn't in a container's place, with its key path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves_of(item, (*key_path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves_of(item, (*key_path, index))
    else:
        yield key_path, value


class Encoder:
    """One walk over a state, which makes `Json` of it.

    Attributes:
        leaves: the tensors and arrays that were met, by their name. An array is a tensor of bytes.
        num_elements: of all leaves, on all ranks.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}
        self.num_elements = 0

    def encode_state(self, state: object) -> dict[str, Json]:
        """The whole state.

        Raises:
            CheckpointError: something in it can't be saved; its path is named, as
                `state["callbacks"]["x"][3]`.
        """
        if not isinstance(state, dict) or type(state) not in (dict, OrderedDict):
            raise refusal(state, ())
        try:
            return self.mapping(state, ())
        except RecursionError:
            raise CheckpointError(
                "The state is nested too deeply to be saved, more than "
                f"{MAX_DEPTH} levels, or holds itself. Save plain, finite data."
            ) from None

    def encode(self, value: Any, key_path: KeyPath) -> Any:
        """One value in it.

        Raises:
            CheckpointError: it, or something in it, is of a type that can't be saved.
            RecursionError: it is nested too deeply.
        """
        # Exact types: a subclass, such as a named tuple or an enum, needs its class to come back.
        kind = type(value)
        if kind in _DENSE:
            return self._tensor(value, key_path)
        if kind is dict:
            return self.mapping(value, key_path)
        if kind is list:
            return self.items(value, key_path)
        if kind is str:
            return check_text(value, key_path)
        if kind is int:
            return check_int(value, key_path)
        if kind is float:
            return _number(value)
        if kind is bool or value is None:
            return value
        form = _BY_KIND.get(kind)
        if form is None:
            return self._other(value, key_path)
        encoded = {form.tag: form.encode(self, value, key_path)}
        # A module's state_dict carries the versions of its submodules in an attribute.
        metadata = getattr(value, "_metadata", None)
        if metadata:
            encoded["metadata"] = self.encode(dict(metadata), (*key_path, "$metadata"))
        return encoded

    def mapping(self, values: Mapping[Any, Any], key_path: KeyPath) -> dict[str, Json]:
        """The items of a dict."""
        if len(key_path) > MAX_DEPTH:
            raise RecursionError
        encoded = {key: self.encode(value, (*key_path, key)) for key, value in values.items()}
        if are_names(encoded):
            return encoded
        for key in encoded:
            check_key(key, key_path)
        # Keys that aren't text, or look like one of our tags, stand in pairs.
        if any(type(key) is not str or key.startswith("$") for key in encoded):
            pairs = [[self.encode(key, key_path), value] for key, value in encoded.items()]
            return {"$dict": pairs}
        return encoded

    def items(self, values: list[Any] | tuple[Any, ...], key_path: KeyPath) -> list[Json]:
        """The items of a list or tuple."""
        if len(key_path) > MAX_DEPTH:
            raise RecursionError
        if are_plain(values):
            return [*values]
        return [self.encode(value, (*key_path, index)) for index, value in enumerate(values)]

    def members(self, values: set[Any], key_path: KeyPath) -> list[Json]:
        """The items of a set."""
        return [self.encode(check_key(value, key_path), key_path) for value in values]

    def _tensor(self, tensor: torch.Tensor, key_path: KeyPath) -> Json:
        if hasattr(tensor, "global_shape"):  # a rank's part, by torch's protocol for plain tensors
            return self._leaf(tensor, key_path)
        check_tensor(tensor, key_path)
        if tensor.layout == torch.strided:
            # A conjugated or negated view is a flag on another tensor's bytes.
            return self._leaf(tensor.detach().resolve_conj().resolve_neg(), key_path)
        extra = []
        if tensor.layout == torch.sparse_coo:
            # torch refuses `indices()` of a tensor that isn't coalesced.
            parts = {"indices": tensor._indices(), "values": tensor._values()}
            extra = [tensor.is_coalesced()]
        else:
            names = (*_COMPRESSED[tensor.layout], "values")
            parts = {name: getattr(tensor, name)() for name in names}
        encoded = {name: self._tensor(part, (*key_path, name)) for name, part in parts.items()}
        return {"$sparse": [_name_of(tensor.layout), list(tensor.shape), encoded, *extra]}

    def _other(self, value: Any, key_path: KeyPath) -> Json:
        """A tensor of a class of its own, or something of NumPy's."""
        if is_sharded(value):
            return self._leaf(value, key_path)
        numpy = sys.modules.get("numpy")
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            raise refusal(value, key_path)
        code = value.dtype.str
        if not array_types.is_plain(value.dtype):
            raise CheckpointError(
                f"{path_of(key_path)} is a NumPy array of type {code!r}, which would not come back "
                "as it is. Expected numbers or strings in this machine's byte order: convert it."
            )
        content = value.tobytes()
        if type(value) is not numpy.ndarray:
            # A NumPy scalar is a few bytes, which stand in the JSON itself.
            return {"$scalar": [code, _text(content)]}
        # A file has no place for a leaf without bytes.
        if content:
            self._leaf(torch.frombuffer(bytearray(content), dtype=torch.uint8), key_path)
        return {"$array": [code, list(value.shape)]}

    def _leaf(self, leaf: Any, key_path: KeyPath) -> Json:
        self.leaves[leaf_name(key_path)] = leaf
        shape = shape_of(leaf)
        self.num_elements += math.prod(shape)
        return {"$tensor": [_name_of(leaf.dtype), list(shape)]}


class Decoder:
    """Builds the state again. What it can't make anything of is an error of any type.

    Args:
        tensor: asked for each tensor: `(key_path, dtype, shape, target) -> value`; None for
            descriptions of them.
        array: asked for the bytes of each array: `(key_path, size_bytes) -> buffer`.
    """

    def __init__(
        self,
        tensor: Callable[[KeyPath, torch.dtype, tuple[int, ...], Any], object] | None,
        array: Callable[[KeyPath, int], Any],
    ) -> None:
        self.tensor = tensor
        self.array = array

    def decode(self, node: Any, key_path: KeyPath = (), target: Any = None) -> Any:
        """The value that `node` stands for.

        Args:
            node: as `Encoder` gives it.
            key_path: of the value.
            target: tensors to fill, at their places in nested dicts and lists.
        """
        if type(node) is list:
            return self.items(node, key_path, target)
        if type(node) is not dict:
            return node
        # A tag comes first, and JSON keeps the order.
        tag = next(iter(node), "")
        if tag == "$tensor":  # nearly all of them
            name, sizes = node[tag]
            dtype, shape = _of_torch(name, torch.dtype), tuple(sizes)
            if self.tensor is None:
                return TensorDescription(shape, dtype)
            return self.tensor(key_path, dtype, shape, target)
        if not tag.startswith("$"):
            return self._mapping(node.items(), key_path, target)
        value = _BY_TAG[tag].decode(self, node[tag], key_path, target)
        if "metadata" in node:
            value._metadata = OrderedDict(self.decode(node["metadata"], (*key_path, "$metadata")))
        return value

    def items(self, nodes: list[Json], key_path: KeyPath, target: Any = None) -> list[Any]:
        """The items of a list."""
        if {dict, list}.isdisjoint(map(type, nodes)):  # a random state has 625 numbers
            return nodes
        targets = dict(enumerate(target)) if isinstance(target, list | tuple) else {}
        return [
            self.decode(node, (*key_path, index), targets.get(index))
            for index, node in enumerate(nodes)
        ]

    def pairs(self, nodes: list[Any], key_path: KeyPath, target: Any) -> dict[Any, Any]:
        """The items of a dict whose keys aren't all text."""
        return self._mapping(((self.decode(key), node) for key, node in nodes), key_path, target)

    def _mapping(self, nodes: Any, key_path: KeyPath, target: Any) -> dict[Any, Any]:
        targets = target if isinstance(target, dict) else {}
        return {key: self.decode(node, (*key_path, key), targets.get(key)) for key, node in nodes}

    def sparse(self, described: list[Any], key_path: KeyPath) -> object:
        """A sparse tensor, or its parts where they are only described."""
        name, shape, encoded, *extra = described
        layout = _of_torch(name, torch.layout)
        parts = {
            name: self.decode(part, (*key_path, name), AT_ONCE) for name, part in encoded.items()
        }
        if any(isinstance(part, TensorDescription) for part in parts.values()):
            return parts
        # Without the check, wrong indices are accesses to any memory.
        if layout == torch.sparse_coo:
            (is_coalesced,) = extra
            return torch.sparse_coo_tensor(
                parts["indices"],
                parts["values"],
                shape,
                is_coalesced=is_coalesced,
                check_invariants=True,
            )
        first, second = (parts[name] for name in _COMPRESSED[layout])
        return torch.sparse_compressed_tensor(
            first, second, parts["values"], shape, layout=layout, check_invariants=True
        )

    def numpy_array(self, described: list[Any], key_path: KeyPath) -> object:
        """A NumPy array."""
        code, shape = described
        dtype = array_types.type_of(code)
        num_bytes = math.prod(shape) * dtype.itemsize
        content = b""
        if num_bytes:
            content = self.array(key_path, num_bytes)
        return array_types.array_of(dtype, shape, content)


class Form(NamedTuple):
    """How values of a type stand in JSON: as an object whose key is the tag."""

    kind: type | None
    tag: str
    encode: Callable[[Encoder, Any, KeyPath], Json]
    decode: Callable[[Decoder, Any, KeyPath, Any], Any]


def _value(kind: type, tag: str, pack: Callable[[Any], Json], unpack: Callable[[Any], Any]) -> Form:
    """The form of a value that holds no others."""
    return Form(kind, tag, lambda _, value, __: pack(value), lambda _, node, *__: unpack(node))


def _only_read(tag: str, decode: Callable[[Decoder, Any, KeyPath, Any], Any]) -> Form:
    """The form of values that aren't told by their exact type: `Encoder` has the other way."""
    return Form(None, tag, lambda *_: None, decode)


def _number(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": str(value)}


def _complex(parts: list[Any]) -> complex:
    real, imaginary = (part if type(part) is float else float(part["$float"]) for part in parts)
    return complex(real, imaginary)


def _text(content: bytes | bytearray) -> str:
    return base64.b64encode(content).decode("ascii")


def _scalar(described: list[Any]) -> Any:
    code, content = described
    return array_types.array_of(array_types.type_of(code), (), base64.b64decode(content))[()]


@functools.cache
def _name_of(thing: torch.dtype | torch.layout) -> str:
    """`float32` for `torch.float32`."""
    return str(thing).removeprefix("torch.")


@functools.cache
def _of_torch(name: str, kind: type) -> Any:
    """`torch.float32` for `float32`."""
    # Not by getattr, which imports parts of torch for some names.
    member = vars(torch).get(name)
    if not isinstance(member, kind):
        raise ValueError(f"torch {torch.__version__} has no {kind.__name__} {name!r}")
    return member


_FORMS = (
    Form(
        OrderedDict,
        "$ordered",
        Encoder.mapping,
        lambda decoder, *place: OrderedDict(decoder.decode(*place)),
    ),
    Form(
        Counter,
        "$counter",
        Encoder.mapping,
        lambda decoder, *place: Counter(decoder.decode(*place)),
    ),
    Form(tuple, "$tuple", Encoder.items, lambda decoder, *place: tuple(decoder.items(*place))),
    Form(set, "$set", Encoder.members, lambda decoder, nodes, *_: set(map(decoder.decode, nodes))),
    _value(complex, "$complex", lambda value: [_number(value.real), _number(value.imag)], _complex),
    _value(bytes, "$bytes", _text, base64.b64decode),
    _value(bytearray, "$bytearray", _text, lambda text: bytearray(base64.b64decode(text))),
    _value(torch.Size, "$size", list, torch.Size),
    _value(torch.dtype, "$dtype", _name_of, lambda name: _of_torch(name, torch.dtype)),
    _value(torch.device, "$device", str, torch.device),
    _only_read("$float", lambda _, text, *__: float(text)),
    _only_read("$dict", Decoder.pairs),
    _only_read("$sparse", lambda decoder, node, place, _: decoder.sparse(node, place)),
    _only_read("$array", lambda decoder, node, place, _: decoder.numpy_array(node, place)),
    _only_read("$scalar", lambda _, node, *__: _scalar(node)),
)
_BY_KIND = {form.kind: form for form in _FORMS if form.kind is not None}
_BY_TAG = {form.tag: form for form in _FORMS}
