"""Weights as files in a folder, each of which is there whole or not at all."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core.checkpoint.building_blocks import cannot_write
from core_weights.sink import bytes_of, write_on_rank_zero

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from core import Fabric, Trainer
    from core.fabric import WeightDescription
    from core_weights.sink import WeightSource

LATEST = "latest.safetensors"
_PREFIX, _SUFFIX = "weights-", ".safetensors"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class FolderSink:
    """Writes each version to a file of safetensors, `weights-12.safetensors`, to which `latest.safetensors` leads.

    Both get their names when the file is complete, so that a reader never sees half of one. The version stands in the
    file's metadata too. Rank 0 writes one tensor after the other, as it comes. One run at a time writes to a folder.
    """

    def __init__(self, folder: str | Path, *, keep: int = 1) -> None:
        """Create the sink; the folder is made when it is first written to.

        Args:
            folder: local to rank 0.
            keep: files that stay, the newest. A reader that has opened a file can read it to its end all the same.

        Raises:
            ConfigurationError: nothing would stay.
        """
        if keep < 1:
            raise ConfigurationError(f"FolderSink(keep={keep}): expected 1 or more.")
        self.folder, self.keep = Path(folder), keep

    def send(self, host: Fabric | Trainer, stream: WeightSource, /) -> None:
        """All ranks. Write a version.

        Raises:
            CheckpointError: it can't be written; the folder's newest version is the one before.
            ConfigurationError: files of safetensors don't have one of the dtypes.
        """
        write_on_rank_zero(host, stream, self._write)

    def close(self, error: BaseException | None = None, /) -> None:
        """Nothing to release: the files stay."""

    def _write(self, version: int, described: list[WeightDescription], tensors: Iterator[tuple[str, Tensor]]) -> None:
        head, places = _layout(version, described)
        path = self.folder / f"{_PREFIX}{version}{_SUFFIX}"
        file, link = self.folder / f".{_PREFIX}partial", self.folder / ".latest-partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as opened:
                opened.write(head)
                for name, tensor in tensors:
                    opened.seek(places[name])
                    opened.write(bytes_of(tensor).numpy().data)
                opened.flush()
                os.fsync(opened.fileno())
            file.replace(path)
            link.unlink(missing_ok=True)  # of a process that was killed
            link.symlink_to(path.name)
            link.replace(self.folder / LATEST)
            self._remove_old(path)
        except OSError as error:
            raise cannot_write(str(path), error) from error
        finally:
            file.unlink(missing_ok=True)

    def _remove_old(self, newest: Path) -> None:
        """Remove all but the newest as they were written: a run that was resumed may write lower versions."""
        files = [path for path in self.folder.glob(f"{_PREFIX}*{_SUFFIX}") if path != newest]
        files.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[self.keep - 1 :]:
            path.unlink()


def _layout(version: int, described: list[WeightDescription]) -> tuple[bytes, dict[str, int]]:
    """The head of the file, and where each tensor begins: wide dtypes first, which keeps all of them aligned."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt", "version": str(version)}}
    end = 0
    for name, dtype, shape in sorted(described, key=lambda each: -each.dtype.itemsize):
        if dtype not in _NAMES:
            raise ConfigurationError(f"{name!r} is of {dtype}, which files of safetensors don't have.")
        begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        head[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    data = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {
        each.name: data + head[each.name]["data_offsets"][0] for each in described
    }
