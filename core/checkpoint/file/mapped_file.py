"""A file that an engine has written by `torch.save`, on mapped memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.checkpoint.file import torch_file
from core.contract.errors import CheckpointCorruptedError
from core.text import plain_file

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def load_mapped(path: PathLike) -> Any:
    """The content of a local file that another program has written by `torch.save`. Nothing in it
    is executed.

    Its tensors are on mapped memory of the file, privately.

    Raises:
        CheckpointCorruptedError: no file is there, or something else.
    """
    name = os.fspath(path)
    try:
        with plain_file.open_file(path) as file:
            return torch_file.unpickle(file, mapped_from=name)
    except (MemoryError, Warning):
        raise
    except (FileNotFoundError, plain_file.NotAFileError):
        raise CheckpointCorruptedError(
            f"{name!r} is missing or damaged: no file is there."
        ) from None
    except Exception as error:
        reason = torch_file.reason_of(error)
        raise CheckpointCorruptedError(f"{name!r} is missing or damaged: {reason:.300}.") from error
