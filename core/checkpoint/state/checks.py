"""Which values a checkpoint can hold: plain types, tensors and arrays. Others are refused before a
byte is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

KeyPath: TypeAlias = tuple[object, ...]
"""Keys and indices that lead to a value: `("model", "0.weight")`."""

_KEYS = (type(None), bool, int, float, complex, str, bytes)
_MAX_INT_BITS = 8 * 255 - 1
"""The most bits of an integer that torch's safe unpickler reads."""
_EXPECTED = (
    "numbers, strings, bytes, None, dict, list, tuple, set, torch.Tensor, NumPy arrays of "
    "numbers or strings"
)


def path_of(key_path: KeyPath) -> str:
    """The place of a value, for an error: `state["callbacks"]["x"][3]`."""
    return "state" + "".join(f"[{key!r}]" for key in key_path)


def are_plain(items: Sequence[object]) -> bool:
    """Whether all items are ints, or ASCII text, that can be saved: a random state has 625, looked
    at in one go.
    """
    kinds = set(map(type, items))  # the exact types: a bool is an int too
    if kinds == {str}:
        return all(map(str.isascii, items))  # type: ignore[arg-type]  # they are text
    return kinds == {int} and max(map(int.bit_length, items)) <= _MAX_INT_BITS  # type: ignore[arg-type]  # they are ints


def are_names(keys: Collection[object]) -> bool:
    """Whether all keys are ASCII text without a `$`, looked at in one go. Such keys need no further
    check.
    """
    if not {str}.issuperset(map(type, keys)):
        return False
    text = "".join(keys)  # type: ignore[arg-type]  # they are text
    return text.isascii() and "$" not in text


def check_int(value: int, key_path: KeyPath) -> int:
    """The number, which is refused if it is too large."""
    if value.bit_length() > _MAX_INT_BITS:
        raise CheckpointError(
            f"{path_of(key_path)} is an int of {value.bit_length()} bits; at most {_MAX_INT_BITS} "
            "can be saved. Save it as a string."
        )
    return value


def check_text(text: str, key_path: KeyPath) -> str:
    """The text, which is refused if it can't be encoded."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{path_of(key_path)} is a string with a lone surrogate, {text!r}, which can't be "
            "encoded. Save it as bytes."
        ) from None
    return text


def check_key(key: Any, key_path: KeyPath) -> None:
    """The key of the dict at `key_path`, which is refused unless it is a scalar or a tuple of
    those.
    """
    if type(key) is str:
        check_text(key, key_path)
    parts = key if type(key) is tuple else (key,)
    if not all(type(part) in _KEYS for part in parts):
        raise CheckpointError(f"the key {key!r} of {refusal(key, key_path)}")


def check_tensor(tensor: torch.Tensor, key_path: KeyPath) -> None:
    """Refuse a tensor that has no values, or no shape."""
    if tensor.is_nested:
        raise CheckpointError(
            f"{path_of(key_path)} is a nested tensor, which a checkpoint can't hold. Save its "
            "parts: tensor.unbind() gives them, and torch.nested.nested_tensor(parts, layout=...) "
            "makes it again."
        )
    if tensor.is_meta:
        raise CheckpointError(
            f"{path_of(key_path)} is a tensor on the meta device, which has no values to save. "
            "Give it values before, by module.to_empty() and a load or reset_parameters()."
        )


def refusal(value: object, key_path: KeyPath) -> CheckpointError:
    """The error for a value of a type that can't be saved."""
    if isinstance(value, torch.Tensor):
        check_tensor(value, key_path)  # a nested tensor may be of a class of its own
    kind = type(value)
    hint = ""
    if callable(getattr(value, "state_dict", None)):
        hint = " Save its state_dict() instead."
    return CheckpointError(
        f"{path_of(key_path)} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint can't "
        f"hold: nothing in it is executed when it is loaded.{hint} Expected {_EXPECTED}."
    )
