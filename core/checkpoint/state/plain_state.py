"""The contents of a checkpoint: plain types, tensors and arrays. Others are refused before a byte is written."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Any

import torch

from core.checkpoint.state import array_types
from core.contract.errors import CheckpointError

_SCALARS = (type(None), bool, int, float, complex, str, bytes, bytearray)
_DESCRIPTIONS = (torch.Size, torch.dtype, torch.device)
_MAX_INT_BITS = 8 * 255 - 1
"""The most bits of an integer that torch's safe unpickler reads."""
_EXPECTED = "numbers, strings, bytes, None, dict, list, tuple, set, torch.Tensor, NumPy arrays of numbers or strings"


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of `state` that can be written and be loaded without running code.

    Tensors are detached, on the CPU, and without the rest of a larger storage that they are a view of. Those that
    share memory go on sharing it.

    Raises:
        CheckpointError: something in it is of another type; its path is named, as `state["callbacks"]["x"][3]`.
    """
    return Converter().convert_state(state)


class Converter:
    """One walk over a state, which copies its containers. Meant to be subclassed."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}

    def convert_state(self, state: Any) -> dict[str, Any]:
        """The whole state.

        Raises:
            CheckpointError: something in it can't be saved.
        """
        if type(state) not in (dict, OrderedDict):
            raise refusal("state", state)
        try:
            return dict(self.convert(state, "state"))
        except RecursionError:
            raise CheckpointError(
                "The state is nested too deeply to be saved, or holds itself. Save plain, finite data."
            ) from None

    def convert(self, value: Any, path: str) -> Any:
        """One value in it, which is at `path`."""
        # Exact types: a subclass, such as a named tuple or an enum, needs its class to come back.
        kind = type(value)
        if kind is str:
            return check_text(value, path)
        if kind is int:
            return check_int(value, path)
        if kind in _SCALARS or kind in _DESCRIPTIONS:
            # Of these only a bytearray can change after the copy.
            return bytearray(value) if kind is bytearray else value
        if kind in (dict, OrderedDict, Counter):
            return self._mapping(value, path)
        if kind in (list, tuple):
            if are_plain(value):
                return kind(value)
            return kind(self.convert(item, f"{path}[{index}]") for index, item in enumerate(value))
        if kind is set:
            return {self.convert(item, f"{path}{{{item!r}}}") for item in value}
        if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return self.tensor(value, path)
        return self.other(value, path)

    def _mapping(self, value: Any, path: str) -> Any:
        pairs = {check_key(key, path): self.convert(item, f"{path}[{key!r}]") for key, item in value.items()}
        copied = type(value)(pairs)
        # A module's state_dict carries the versions of its submodules in an attribute.
        if metadata := getattr(value, "_metadata", None):
            copied._metadata = self.convert(metadata, f"{path}._metadata")
        return copied

    def other(self, value: Any, path: str) -> Any:
        """A value of a type that isn't torch's or Python's own."""
        return check_array(value, path)

    def tensor(self, tensor: torch.Tensor, path: str) -> Any:
        """A tensor; one that was met before is the same again."""
        check_values(tensor, path)
        if tensor.layout != torch.strided:
            return self.sparse(tensor.detach())
        # By memory and not by `id`: each `state_dict()` makes new objects for the same parameters.
        storage = tensor.untyped_storage()
        identity = (
            tensor.device,
            storage.data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        # Empty tensors may all have the address 0, and share nothing.
        if identity not in self._tensors or not tensor.numel():
            self._tensors[identity] = self.dense(tensor.detach(), path)
        return self._tensors[identity]

    def sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a sparse layout, on the CPU."""
        return tensor.cpu()

    def dense(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """A tensor on the CPU, without the rest of a larger storage that it is a view of."""
        moved = tensor.cpu()
        is_part = moved.untyped_storage().nbytes() > moved.nbytes
        return moved.clone() if is_part else moved


def are_plain(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether all items are ints, or ASCII text, that can be saved: a random state has 625, looked at in one go."""
    kinds = set(map(type, items))  # the exact types: a bool is an int too
    if kinds == {str}:
        return all(map(str.isascii, items))
    if kinds != {int}:
        return False
    num_bits: int = max(max(items).bit_length(), min(items).bit_length())
    return num_bits <= _MAX_INT_BITS


def check_int(value: int, path: str) -> int:
    """The number, if it isn't too large.

    Raises:
        CheckpointError: with its path.
    """
    if value.bit_length() > _MAX_INT_BITS:
        raise CheckpointError(
            f"{path} is an int of {value.bit_length()} bits; at most {_MAX_INT_BITS} can be saved. Save it as a string."
        )
    return value


def check_values(tensor: torch.Tensor, path: str) -> None:
    """Check that a tensor has values, and a shape.

    Raises:
        CheckpointError: with its path.
    """
    if tensor.is_nested:
        raise CheckpointError(
            f"{path} is a nested tensor, which a checkpoint can't hold. Save its parts: tensor.unbind() gives them, "
            "and torch.nested.nested_tensor(parts, layout=...) makes it again."
        )
    if tensor.is_meta:
        raise CheckpointError(
            f"{path} is a tensor on the meta device, which has no values to save. Give it values "
            "before, by module.to_empty() and a load or reset_parameters()."
        )


def check_text(text: str, path: str) -> str:
    """The text, if it can be encoded.

    Raises:
        CheckpointError: with its path.
    """
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{path} is a string with a lone surrogate, {text!r}, which can't be encoded. Save it as bytes."
        ) from None
    return text


def check_key(key: Any, path: str) -> Any:
    """The key of the dict at `path`, if it is a scalar or a tuple of those.

    Raises:
        CheckpointError: with the path.
    """
    if not is_key(key):
        raise refusal(f"the key {key!r} of {path}", key)
    return key


def are_names(keys: dict[Any, Any]) -> bool:
    """Whether all keys are ASCII text without a `$`, looked at in one go. Such keys need no further check."""
    return {str}.issuperset(map(type, keys)) and (text := "".join(keys)).isascii() and "$" not in text


def is_key(key: Any) -> bool:
    """True if a dict in a checkpoint can have such a key."""
    if type(key) is str:  # nearly all of them
        return True
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in _SCALARS and type(part) is not bytearray for part in parts)


def check_array(value: Any, path: str) -> Any:
    """The NumPy array or scalar, if it is one of numbers or strings.

    Raises:
        CheckpointError: with its path.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise refusal(path, value)
    # torch's safe unpickler drops the byte order, and so would return other numbers.
    if not array_types.is_plain(value.dtype):
        raise CheckpointError(
            f"{path} is a NumPy array of type {value.dtype.str!r}, which would not come back as it is. "
            "Expected numbers or strings in this machine's byte order: convert it."
        )
    return value


def refusal(path: str, value: Any) -> CheckpointError:
    """The error for a value of a type that can't be saved."""
    if isinstance(value, torch.Tensor):
        check_values(value, path)  # a nested tensor may be of a class of its own
    kind = type(value)
    hint = " Save its state_dict() instead." if callable(getattr(value, "state_dict", None)) else ""
    return CheckpointError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint can't hold: nothing in it is executed "
        f"when it is loaded.{hint} Expected {_EXPECTED}."
    )
