"""A file of safetensors that is written a tensor at a time."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, TensorSpec

from core import ConfigurationError
from core_weights.sink import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from core_weights.weight_stream import WeightDescription


class SafetensorsFile:
    """A file of safetensors, in which one tensor after the other gets its bytes. Used by one
    process.
    """

    def __init__(self, path: Path, described: Iterable[WeightDescription], **metadata: str) -> None:
        """Write the head, with a place for each tensor: wide dtypes first, which keeps all of them
        aligned.

        Args:
            path: local; its folder is made, and a file that is there is replaced.
            described: the tensors to come.
            metadata: of the file, beside its format.

        Raises:
            ConfigurationError: files of safetensors don't have one of the dtypes.
        """
        head: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        places, end = {}, 0
        for name, dtype, shape in sorted(described, key=lambda each: -each.dtype.itemsize):
            places[name], size = end, dtype.itemsize * math.prod(shape)
            end += size
            try:
                spec = TensorSpec(
                    dtype=str(dtype).removeprefix("torch."), shape=shape, data_ptr=0, data_len=size
                )
            except SafetensorError as error:
                raise ConfigurationError(
                    f"{name!r} is of {dtype}, which files of safetensors don't have."
                ) from error
            head[name] = {
                "dtype": spec.dtype,
                "shape": spec.shape,
                "data_offsets": [end - size, end],
            }
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        self._path, self._places, self._begin = path, places, 8 + len(text)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(self._begin + end)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the bytes of a tensor to its place."""
        with self._path.open("r+b") as file:
            file.seek(self._begin + self._places[name])
            file.write(bytes_of(tensor).numpy().data)
