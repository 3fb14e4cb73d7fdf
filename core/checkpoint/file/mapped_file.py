"""A file that an engine has written by `torch.save`, on mapped memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.file import torch_file
from core.checkpoint.state.tree import leaves_of, readable
from core.contract.errors import CheckpointCorruptedError
from core.text import plain_file

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def load_mapped(path: PathLike) -> Any:
    """The content of a local file that another program has written by `torch.save`. Nothing in it
    is executed.

    Its tensors are on mapped memory of the file, privately.

    Raises:
        CheckpointCorruptedError: no file is there, or something else; or a tensor shows more than
            the file holds.
    """
    name = os.fspath(path)
    try:
        with plain_file.open_file(path) as file:
            loaded = torch_file.unpickle(file, mapped_from=name)
        for key_path, leaf in leaves_of(loaded):
            if isinstance(leaf, torch.Tensor):
                _check_whole(readable(key_path), leaf)
    except (MemoryError, Warning):
        raise
    except (FileNotFoundError, plain_file.NotAFileError):
        raise CheckpointCorruptedError(
            f"{name!r} is missing or damaged: no file is there."
        ) from None
    except Exception as error:
        reason = torch_file.reason_of(error)
        raise CheckpointCorruptedError(f"{name!r} is missing or damaged: {reason:.300}.") from error
    return loaded


def _check_whole(name: str, tensor: torch.Tensor) -> None:
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_dense or tensor.untyped_storage().nbytes() < tensor.nbytes:
        raise ValueError(
            f"{name!r} of shape {tuple(tensor.shape)} is no dense tensor with a value for each "
            "element"
        )
