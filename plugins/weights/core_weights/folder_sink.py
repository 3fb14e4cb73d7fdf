"""Weights as files in a folder, each of which is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from core import ConfigurationError
from core.checkpoint.building_blocks import cannot_write
from core_weights.safetensors_file import SafetensorsFile
from core_weights.sink import write_on_rank_zero

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from core import Fabric, Trainer
    from core_weights.sink import WeightSource
    from core_weights.weight_stream import WeightDescription

LATEST = "latest.safetensors"
_PREFIX, _SUFFIX = "weights-", ".safetensors"


class FolderSink:
    """Writes each version to a file of safetensors, `weights-12.safetensors`, to which
    `latest.safetensors` leads.

    Both get their names when the file is complete, so that a reader never sees half of one. The
    version stands in the file's metadata too. Rank 0 writes one tensor after the other, as it
    comes. One run at a time writes to a folder.
    """

    def __init__(self, folder: str | Path, *, keep: int = 1) -> None:
        """Create the sink; the folder is made when it is first written to.

        Args:
            folder: local to rank 0.
            keep: files that stay, the newest. A reader that has opened a file can read it to its
                end all the same.

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

    def _write(
        self,
        version: int,
        described: list[WeightDescription],
        tensors: Iterator[tuple[str, Tensor]],
    ) -> None:
        path = self.folder / f"{_PREFIX}{version}{_SUFFIX}"
        file, link = self.folder / f".{_PREFIX}partial", self.folder / ".latest-partial"
        try:
            begun = SafetensorsFile(file, described, version=str(version))
            for name, tensor in tensors:
                begun.write(name, tensor)
                del tensor  # before the next one is made
            with file.open("rb") as opened:
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
        """Remove all but the newest as they were written: a run that was resumed may write lower
        versions.
        """
        files = [path for path in self.folder.glob(f"{_PREFIX}*{_SUFFIX}") if path != newest]
        files.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[self.keep - 1 :]:
            path.unlink()
