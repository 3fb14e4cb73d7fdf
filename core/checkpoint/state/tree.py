"""A state as JSON, exactly, with its tensors and arrays kept elsewhere.

Numbers, strings, None, lists, and dicts with text as keys are what they are in JSON. Everything
else is an object whose first key begins with `$`: `{"$tuple": [1, 2]}`, `{"$float": "inf"}`,
`{"$tensor": ["float32", [3, 4]]}`. The table `_FORMS` has all of them, both ways.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import Counter, OrderedDict
from functools import cache, partial
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

_PARTS = {
    # torch refuses `indices()` of a tensor that isn't coalesced
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""The methods that give the parts of a sparse tensor, in the order in which torch's constructor
takes them."""


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

    def encode_state(self, state: Any) -> dict[str, Json]:
        """The whole state.

        Raises:
            CheckpointError: something in it can't be saved; its path is named, as
                `state["callbacks"]["x"][3]`.
        """
        if type(state) not in (dict, OrderedDict):
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
        if len(key_path) > MAX_DEPTH:
            raise RecursionError
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
        if kind is bool or value is None or (kind is float and math.isfinite(value)):
            return value
        if kind is float:
            return {"$float": str(value)}
        form = _BY_KIND.get(kind)
        if form is None:
            return self._other(value, key_path)
        encoded = {form.tag: self.encode(form.pack(value), key_path)}
        # A module's state_dict carries the versions of its submodules in an attribute.
        metadata = getattr(value, "_metadata", None)
        if metadata:
            encoded["metadata"] = self.encode(dict(metadata), (*key_path, "$metadata"))
        return encoded

    def mapping(self, values: Mapping[Any, Any], key_path: KeyPath) -> dict[str, Json]:
        """The items of a dict."""
        in_pairs = False
        if not are_names(values):
            for key in values:
                check_key(key, key_path)
            in_pairs = any(type(key) is not str or key.startswith("$") for key in values)
        encoded = {key: self.encode(value, (*key_path, key)) for key, value in values.items()}
        if not in_pairs:
            return encoded
        # Keys that aren't text, or look like one of our tags, stand in pairs.
        pairs: list[Json] = [[self.encode(key, key_path), value] for key, value in encoded.items()]
        return {"$dict": pairs}

    def items(self, values: list[Any] | tuple[Any, ...], key_path: KeyPath) -> list[Json]:
        """The items of a list or tuple."""
        if are_plain(values):
            return [*values]
        return [self.encode(value, (*key_path, index)) for index, value in enumerate(values)]

    def _tensor(self, tensor: torch.Tensor, key_path: KeyPath) -> Json:
        if hasattr(tensor, "global_shape"):  # a rank's part, by torch's protocol for plain tensors
            return self._leaf(tensor, key_path)
        check_tensor(tensor, key_path)
        if tensor.layout == torch.strided:
            # A conjugated or negated view is a flag on another tensor's bytes.
            return self._leaf(tensor.detach().resolve_conj().resolve_neg(), key_path)
        parts = {}
        for method in _PARTS[tensor.layout]:
            name = method.strip("_")
            parts[name] = self._tensor(getattr(tensor, method)(), (*key_path, name))
        described: list[Json] = [_name_of(tensor.layout), list(tensor.shape), parts]
        if tensor.layout == torch.sparse_coo:
            described.append(tensor.is_coalesced())
        return {"$sparse": described}

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
        if tag in _METHODS:
            return _METHODS[tag](self, node[tag], key_path, target)
        value = _UNPACK[tag](self.decode(node[tag], key_path, target))
        if "metadata" in node:
            value._metadata = OrderedDict(self.decode(node["metadata"], (*key_path, "$metadata")))
        return value

    def items(self, nodes: list[Json], key_path: KeyPath, target: Any = None) -> list[Any]:
        """The items of a list."""
        if {dict, list}.isdisjoint(map(type, nodes)):  # a random state has 625 numbers
            return [*nodes]
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

    def sparse(self, described: list[Any], key_path: KeyPath, _: object) -> object:
        """A sparse tensor, or its parts where they are only described."""
        name, shape, encoded, *is_coalesced = described
        layout = _of_torch(name, torch.layout)
        parts = {
            name: self.decode(part, (*key_path, name), AT_ONCE) for name, part in encoded.items()
        }
        if any(isinstance(part, TensorDescription) for part in parts.values()):
            return parts
        # Without the check, wrong indices are accesses to any memory.
        if layout == torch.sparse_coo:
            make: Any = partial(torch.sparse_coo_tensor, is_coalesced=is_coalesced[0])
        else:
            make = partial(torch.sparse_compressed_tensor, layout=layout)
        return make(*parts.values(), shape, check_invariants=True)

    def numpy_array(self, described: list[Any], key_path: KeyPath, _: object) -> object:
        """A NumPy array."""
        code, shape = described
        dtype = array_types.type_of(code)
        num_bytes = math.prod(shape) * dtype.itemsize
        content = b""
        if num_bytes:
            content = self.array(key_path, num_bytes)
        return array_types.array_of(dtype, shape, content)


class Form(NamedTuple):
    """How values of a type stand in JSON: as an object whose key is the tag.

    Attributes:
        kind: the type.
        tag: of it.
        pack: makes something of a value that has a form itself.
        unpack: makes the value of that.
    """

    kind: type
    tag: str
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def _text(content: bytes | bytearray) -> str:
    return base64.b64encode(content).decode("ascii")


def _scalar(described: list[Any]) -> Any:
    code, content = described
    return array_types.array_of(array_types.type_of(code), (), base64.b64decode(content))[()]


@cache
def _name_of(thing: torch.dtype | torch.layout) -> str:
    """`float32` for `torch.float32`."""
    return str(thing).removeprefix("torch.")


@cache
def _of_torch(name: str, kind: type) -> Any:
    """`torch.float32` for `float32`."""
    # Not by getattr, which imports parts of torch for some names.
    member = vars(torch).get(name)
    if not isinstance(member, kind):
        raise ValueError(f"torch {torch.__version__} has no {kind.__name__} {name!r}")
    return member


_FORMS = (
    Form(OrderedDict, "$ordered", dict, OrderedDict),
    Form(Counter, "$counter", dict, Counter),
    Form(tuple, "$tuple", list, tuple),
    Form(set, "$set", list, set),
    Form(complex, "$complex", lambda value: [value.real, value.imag], lambda pair: complex(*pair)),
    Form(bytes, "$bytes", _text, base64.b64decode),
    Form(bytearray, "$bytearray", _text, lambda text: bytearray(base64.b64decode(text))),
    Form(torch.Size, "$size", list, torch.Size),
    Form(torch.dtype, "$dtype", _name_of, lambda name: _of_torch(name, torch.dtype)),
    Form(torch.device, "$device", str, torch.device),
)
_BY_KIND = {form.kind: form for form in _FORMS}
_UNPACK: dict[str, Callable[[Any], Any]] = {
    **{form.tag: form.unpack for form in _FORMS},
    "$float": float,
    "$scalar": _scalar,
}
_METHODS: dict[str, Callable[[Decoder, Any, KeyPath, Any], Any]] = {
    "$dict": Decoder.pairs,
    "$sparse": Decoder.sparse,
    "$array": Decoder.numpy_array,
}
