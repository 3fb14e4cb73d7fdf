"""The contents of a checkpoint: plain types, tensors and arrays. Others are refused before a byte
is written.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from core.checkpoint.state import array_types
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Value = TypeVar("Value")

KeyPath: TypeAlias = tuple[object, ...]
"""Keys and indices that lead to a value: `("model", "0.weight")`."""

_SCALARS = (type(None), bool, int, float, complex, str, bytes, bytearray)
_PLAIN = (*_SCALARS, torch.Size, torch.dtype, torch.device)
_DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MAPPINGS = (dict, OrderedDict, Counter)
_COPIED = (tuple, set, OrderedDict, Counter, bytearray)
_MAX_INT_BITS = 8 * 255 - 1
"""The most bits of an integer that torch's safe unpickler reads."""
_EXPECTED = (
    "numbers, strings, bytes, None, dict, list, tuple, set, torch.Tensor, NumPy arrays of "
    "numbers or strings"
)


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of `state` that can be written and be loaded without running code.

    Tensors are detached, on the CPU, and without the rest of a larger storage that they are a view
    of. Those that share memory go on sharing it.

    Raises:
        CheckpointError: something in it is of another type; its path is named, as
            `state["callbacks"]["x"][3]`.
    """
    return Encoder().encode_state(state)


class Encoder:
    """One walk over a state, which makes plain data of it: here a copy of its containers. Meant to
    be subclassed.

    Attributes:
        max_depth: the most containers in each other.
    """

    max_depth = sys.maxsize

    def __init__(self) -> None:
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}

    def encode_state(self, state: object) -> dict[str, Any]:
        """The whole state.

        Raises:
            CheckpointError: something in it can't be saved.
        """
        if type(state) not in (dict, OrderedDict):
            raise refusal("state", state)
        try:
            return dict(self.encode(state, (), "state"))
        except RecursionError:
            limit = f", more than {self.max_depth} levels" if self.max_depth < sys.maxsize else ""
            raise CheckpointError(
                f"The state is nested too deeply to be saved{limit}, or holds itself. Save plain, "
                "finite data."
            ) from None

    def encode(self, value: Any, key_path: KeyPath, path: str) -> Any:
        """One value in it, whose place is `path` in an error.

        Raises:
            CheckpointError: it, or something in it, is of a type that can't be saved; its path is
                named.
            RecursionError: it is nested too deeply.
        """
        if len(key_path) > self.max_depth:
            raise RecursionError
        # Exact types: a subclass, such as a named tuple or an enum, needs its class to come back.
        kind = type(value)
        if kind is str:
            return check_text(value, path)
        if kind is int:
            return check_int(value, path)
        if kind in _DENSE and not hasattr(value, "global_offsets"):
            return self._tensor(value, key_path, path)
        if kind in _MAPPINGS:
            are_simple = are_names(value)
            if not are_simple:
                for key in value:
                    check_key(key, path)
            items = {
                key: self.encode(item, (*key_path, key), f"{path}[{key!r}]")
                for key, item in value.items()
            }
            encoded = self._pack(kind, items if are_simple else self._names(items, key_path, path))
            # A module's state_dict carries the versions of its submodules in an attribute.
            if metadata := getattr(value, "_metadata", None):
                self._add_metadata(encoded, metadata, (*key_path, "$metadata"), f"{path}._metadata")
            return encoded
        if kind is list or kind is tuple:
            # at the limit, each item is one too deep
            if len(key_path) < self.max_depth and are_plain(value):
                return self._pack(kind, kind(value))
            return self._pack(
                kind,
                [
                    self.encode(item, (*key_path, index), f"{path}[{index}]")
                    for index, item in enumerate(value)
                ],
            )
        if kind is set:
            return self._pack(kind, [self._member(item, key_path, path) for item in value])
        return self._pack(kind, value) if kind in _PLAIN else self._other(value, key_path, path)

    def _pack(self, kind: type, content: Any) -> Any:
        """A value of the kind. The content of a container is encoded already, in a new dict or
        list.
        """
        return kind(content) if kind in _COPIED else content

    def _names(self, items: dict[Any, Any], key_path: KeyPath, path: str) -> Any:
        """The items of a mapping whose keys aren't all `are_names`, with keys that can be saved."""
        return items

    def _add_metadata(self, encoded: Any, metadata: Any, key_path: KeyPath, path: str) -> None:
        """Add the versions of submodules to what their state_dict has become."""
        encoded._metadata = self.encode(metadata, key_path, path)

    def _member(self, item: object, key_path: KeyPath, path: str) -> Any:
        """One item of the set at `path`."""
        return self.encode(item, key_path, f"{path}{{{item!r}}}")

    def _other(self, value: object, key_path: KeyPath, path: str) -> Any:
        """A value of a type that isn't torch's or Python's own."""
        return check_array(value, path)

    def _tensor(self, tensor: torch.Tensor, key_path: KeyPath, path: str) -> Any:
        """A tensor; one that was met before is the same again."""
        check_values(tensor, path)
        if tensor.layout != torch.strided:
            return self._sparse(tensor.detach())
        # By memory and not by `id`: each `state_dict()` makes new objects for the same parameters.
        storage = tensor.untyped_storage()
        address = (tensor.device, storage.data_ptr(), tensor.storage_offset())
        identity = (*address, tensor.shape, tensor.stride(), tensor.dtype)
        # Empty tensors may all have the address 0, and share nothing.
        if identity not in self._tensors or not tensor.numel():
            self._tensors[identity] = self._dense(tensor.detach(), path)
        return self._tensors[identity]

    def _sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a sparse layout, on the CPU."""
        return tensor.cpu()

    def _dense(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """A tensor on the CPU, without the rest of a larger storage that it is a view of."""
        moved = tensor.cpu()
        is_part = moved.untyped_storage().nbytes() > moved.nbytes
        return moved.clone() if is_part else moved


def are_plain(items: Sequence[Any]) -> bool:
    """Whether all items are ints, or ASCII text, that can be saved: a random state has 625, looked
    at in one go.
    """
    kinds = set(map(type, items))  # the exact types: a bool is an int too
    if kinds == {str}:
        return all(map(str.isascii, items))
    if kinds != {int}:
        return False
    num_bits: int = max(max(items).bit_length(), min(items).bit_length())
    return num_bits <= _MAX_INT_BITS


def check_int(value: int, path: str) -> int:
    """The number, which is refused if it is too large."""
    if value.bit_length() > _MAX_INT_BITS:
        raise CheckpointError(
            f"{path} is an int of {value.bit_length()} bits; at most {_MAX_INT_BITS} can be saved. "
            "Save it as a string."
        )
    return value


def check_values(tensor: torch.Tensor, path: str) -> None:
    """Refuse a tensor that has no values, no shape, or only its rank's part of them."""
    if hasattr(tensor, "global_offsets"):
        raise CheckpointError(
            f"{path} is this rank's part of a tensor. Save it with DistributedCheckpointIO."
        )
    if tensor.is_nested:
        raise CheckpointError(
            f"{path} is a nested tensor, which a checkpoint can't hold. Save its parts: "
            "tensor.unbind() gives them, and torch.nested.nested_tensor(parts, layout=...) makes "
            "it again."
        )
    if tensor.is_meta:
        raise CheckpointError(
            f"{path} is a tensor on the meta device, which has no values to save. Give it values "
            "before, by module.to_empty() and a load or reset_parameters()."
        )


def check_text(text: str, path: str) -> str:
    """The text, which is refused if it can't be encoded."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{path} is a string with a lone surrogate, {text!r}, which can't be encoded. Save it "
            "as bytes."
        ) from None
    return text


def check_key(key: Value, path: str) -> Value:
    """The key of the dict at `path`, which is refused unless it is a scalar or a tuple of those."""
    if not is_key(key):
        raise refusal(f"the key {key!r} of {path}", key)
    return key


def are_names(keys: Collection[Any]) -> bool:
    """Whether all keys are ASCII text without a `$`, looked at in one go. Such keys need no further
    check.
    """
    return (
        {str}.issuperset(map(type, keys)) and (text := "".join(keys)).isascii() and "$" not in text
    )


def is_key(key: object) -> bool:
    """True if a dict in a checkpoint can have such a key."""
    if type(key) is str:  # nearly all of them
        return True
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in _SCALARS and type(part) is not bytearray for part in parts)


def check_array(value: Any, path: str) -> Any:
    """The NumPy array or scalar, which is refused unless it is one of numbers or strings."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise refusal(path, value)
    # torch's safe unpickler drops the byte order, and so would return other numbers.
    if not array_types.is_plain(value.dtype):
        raise CheckpointError(
            f"{path} is a NumPy array of type {value.dtype.str!r}, which would not come back as it "
            "is. Expected numbers or strings in this machine's byte order: convert it."
        )
    return value


def refusal(path: str, value: object) -> CheckpointError:
    """The error for a value of a type that can't be saved."""
    if isinstance(value, torch.Tensor):
        check_values(value, path)  # a nested tensor may be of a class of its own
    kind = type(value)
    hint = " Save its state_dict() instead." if callable(getattr(value, "state_dict", None)) else ""
    return CheckpointError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint can't hold: "
        f"nothing in it is executed when it is loaded.{hint} Expected {_EXPECTED}."
    )
