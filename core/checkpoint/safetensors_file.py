"""Weights in one file of the format safetensors, for other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from core.checkpoint import single_file
from core.checkpoint.plain_state import to_plain
from core.checkpoint.tree import Decoder, Encoder
from core.contract.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from core.checkpoint.digest import HashingWriter
    from core.contract.checkpoint_io import PathLike

SUFFIX = ".safetensors"
_OURS = "core"
_KEPT = "format"
"""What is kept of a state beside its weights: who wrote it."""


def write(state: dict[str, Any], path: PathLike) -> None:
    """Replace what is at `path` by the weights in `state`: every entry that is a dict of tensors.

    Raises:
        CheckpointError: it can't be written, or `state` has no weights.
    """
    library = _library()
    entries = {key: value for key, value in to_plain(state).items() if _is_weights(value)}
    if not entries:
        raise CheckpointError(
            f"The state has no weights to write as safetensors: none of {sorted(map(str, state))} is a dict of tensors."
        )
    prefixes = {key: f"{key}." if len(entries) > 1 else "" for key in entries}
    tensors = _apart({prefixes[key] + name: value for key, part in entries.items() for name, value in part.items()})
    kept = Encoder().encode(state.get(_KEPT), (), f"state[{_KEPT!r}]")
    metadata = {_OURS: json.dumps({"prefixes": prefixes, _KEPT: kept})}

    def fill(file: HashingWriter) -> None:
        file.write(library.save(tensors, metadata))

    single_file.replace(path, fill)


def read(path: PathLike) -> dict[str, Any]:
    """The weights in a file, verified: `{"model": {...}}`, or the entries that they came from.

    Raises:
        As `single_file.read`.
    """
    return single_file.read(path, _load)


def _load(file: BinaryIO, path: str) -> dict[str, Any]:
    library = _library()
    content = file.read()
    try:
        tensors = library.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        ours = json.loads(header.get("__metadata__", {}).get(_OURS, "null")) or {"prefixes": {"model": ""}}
        state = _apart_by(ours["prefixes"], tensors)
        kept = Decoder(_no_tensor, _no_tensor).decode(ours.get(_KEPT))
    except Exception as error:
        raise CheckpointCorruptedError(f"{path!r} is not a file of safetensors: {error}.") from error
    return {**state, _KEPT: kept} if kept is not None else state


def _apart_by(prefixes: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """By the entries that they came from; one entry's name may begin as another's."""
    state: dict[str, dict[str, torch.Tensor]] = {key: {} for key in prefixes}
    for name, tensor in tensors.items():
        key, prefix = max(
            (item for item in prefixes.items() if name.startswith(item[1])), key=lambda item: len(item[1])
        )
        state[key][name.removeprefix(prefix)] = tensor
    return state


def _is_weights(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(type(name) is str and isinstance(item, torch.Tensor) for name, item in value.items())
    )


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share memory, as the format can't say that, each on its own."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if pointer in seen else tensor.contiguous()
        seen.add(pointer)
    return apart


def _library() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise CheckpointError(
            "The package safetensors is not installed. Install it with `pip install 'core[safetensors]'`."
        ) from error
    return safetensors.torch


def _no_tensor(*_: Any) -> Any:
    raise ValueError("a tensor in the description of the file")
