"""Weights in one file of the format safetensors, for other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from core.checkpoint.file import single_file
from core.checkpoint.state.plain_state import to_plain
from core.checkpoint.state.tree import Decoder, Encoder, leaves_of
from core.contract.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    from types import ModuleType

    from core.checkpoint.format.digest import HashingWriter
    from core.contract.checkpoint_io import PathLike

SUFFIX = ".safetensors"
_OURS = "core"
_MAX_HEADER_BYTES = 100 << 20
"""The largest header of such files, as their library says."""


def write(state: dict[str, Any], path: PathLike) -> None:
    """Replace what is at `path` by a state of weights, entries that are dicts of tensors, and plain
    values.

    Raises:
        CheckpointError: it can't be written, has no weights, or other tensors and arrays besides.
    """
    library = _library()
    plain = to_plain(state)
    entries = {key: value for key, value in plain.items() if _is_weights(value)}
    if not entries:
        raise CheckpointError(
            f"The state has no weights to write as safetensors: none of {sorted(map(str, state))} "
            "is a dict of tensors."
        )
    rest = {key: value for key, value in plain.items() if key not in entries}
    lost = _with_tensors(rest)
    if lost:
        raise CheckpointError(
            f"A file of safetensors holds weights and plain values: {', '.join(map(repr, lost))} "
            "would be lost, with tensors or arrays that aren't a module's weights. Save the module "
            "alone (ModelCheckpoint's save_weights_only=True), or use another form, from which "
            "training can go on, and convert it: `core checkpoint convert`."
        )
    # A single entry keeps the names that other programs look for.
    prefixes = {key: f"{key}." if len(entries) > 1 else "" for key in entries}
    # Tensors that share memory are separated, as the format can't say that.
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for key, part in entries.items():
        for name, tensor in part.items():
            pointer = tensor.untyped_storage().data_ptr()
            apart = tensor.clone() if pointer in seen else tensor.contiguous()
            tensors[prefixes[key] + name] = apart
            seen.add(pointer)
    metadata = {_OURS: json.dumps({"prefixes": prefixes, "rest": Encoder().encode_state(rest)})}

    def fill(file: HashingWriter) -> None:
        file.write(library.save(tensors, metadata))

    single_file.replace(path, fill)


def weights_in(state: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The weights of a state that `write` takes, and the names of the entries that it leaves
    out.
    """
    lost = _with_tensors({key: value for key, value in state.items() if not _is_weights(value)})
    return {key: value for key, value in state.items() if key not in lost}, lost


def _with_tensors(state: dict[str, Any]) -> list[str]:
    """Keys of a dict below which tensors or arrays are."""
    return [
        key
        for key, item in state.items()
        if any(
            isinstance(leaf, torch.Tensor) or type(leaf).__name__ == "ndarray"
            for _, leaf in leaves_of(item)
        )
    ]


def begins(file: BinaryIO) -> bool:
    """True if a file is of this format, by its first bytes."""
    start = file.read(9)
    file.seek(0)
    # The length of the header in 8 bytes, then the header, a JSON object.
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= _MAX_HEADER_BYTES


def load(file: BinaryIO, path: str) -> dict[str, Any]:
    """Read the content of a file: `{"model": {...}}` if it isn't core's own, or the state that was
    written.

    Raises:
        CheckpointCorruptedError: it is something else.
    """
    library = _library()
    content = file.read()
    try:
        tensors = library.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        ours = json.loads(header.get("__metadata__", {}).get(_OURS, '{"prefixes": {"model": ""}}'))
        prefixes = ours["prefixes"]
        state: dict[str, dict[str, torch.Tensor]] = {key: {} for key in prefixes}
        for name, tensor in tensors.items():
            # one entry's name may begin as another's
            fitting = [key for key, prefix in prefixes.items() if name.startswith(prefix)]
            key = max(fitting, key=lambda key: len(prefixes[key]))
            state[key][name.removeprefix(prefixes[key])] = tensor
        rest = Decoder(_no_tensor, _no_tensor).decode(ours.get("rest", {}))
        return {**state, **rest}
    except Exception as error:
        raise CheckpointCorruptedError(
            f"{path!r} is not a file of safetensors: {error}."
        ) from error


def _is_weights(value: object) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(type(name) is str for name in value) and all(
        isinstance(item, torch.Tensor) for item in value.values()
    )


def _library() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise CheckpointError(
            "The package safetensors is not installed: `pip install safetensors`."
        ) from error
    return safetensors.torch


def _no_tensor(*_: object) -> Any:
    raise ValueError("a tensor in the description of the file")
