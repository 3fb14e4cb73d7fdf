"""A folder of safetensors files: tensors read box by box, and written one after the other."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from core import CheckpointCorruptedError, CheckpointNotFoundError
from core.fabric import WeightDescription
from core_weights import SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightFiles:
    """The tensors in a folder that `save_pretrained` of transformers has written; nothing is read
    before it is asked.

    Attributes:
        folder: with `model.safetensors`, or its parts and their index.
    """

    def __init__(self, folder: str | Path, one_file: str = ONE_FILE) -> None:
        """Find the files.

        Args:
            folder: local.
            one_file: the name of the file, where there is one.

        Raises:
            CheckpointNotFoundError: there are none.
            CheckpointCorruptedError: the index names one that isn't there, or isn't an index.
        """
        self.folder = Path(folder)
        self._open: dict[Path, Any] = {}
        self._one_file = self.folder / one_file
        if not self._one_file.is_file() and not (self.folder / INDEX).is_file():
            raise CheckpointNotFoundError(
                f"{str(folder)!r} has neither {one_file} nor {INDEX}. Expected a folder that "
                "save_pretrained of transformers wrote, or the local folder of a downloaded model."
            )

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file that has a tensor, by the tensor's name."""
        if self._one_file.is_file():
            return dict.fromkeys(self._opened(self._one_file).keys(), self._one_file)
        try:
            names = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            found = {name: self.folder / Path(file).name for name, file in names.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointCorruptedError(
                f"{str(self.folder / INDEX)!r} is no index of weights: {error!r}."
            ) from error
        if missing := sorted({file.name for file in found.values() if not file.is_file()}):
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} is incomplete: {', '.join(missing)} is missing."
            )
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which isn't read."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, box: tuple[slice, ...] = ()) -> torch.Tensor:
        """A tensor, or a box of it, on the CPU."""
        tensor: torch.Tensor = (
            self._slice(name)[box] if box else self._opened(self.files[name]).get_tensor(name)
        )
        return tensor

    def _slice(self, name: str) -> Any:
        return self._opened(self.files[name]).get_slice(name)

    def _opened(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = safetensors.safe_open(path, framework="pt")
            except (safetensors.SafetensorError, OSError) as error:
                raise CheckpointCorruptedError(
                    f"{str(path)!r} is not a file of safetensors: {error}."
                ) from error
        return self._open[path]


def in_parts(
    described: Mapping[str, torch.Tensor], max_bytes: int, one_file: str
) -> dict[str, list[str]]:
    """The names of tensors by the file that gets them, in their order; a file has at least one.

    Args:
        described: tensors on the meta device by name.
        max_bytes: of a file.
        one_file: the name of the file, where it is one.
    """
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in described.items():
        if groups[-1] and size + tensor.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    if len(groups) == 1:
        return {one_file: groups[0]}
    return {
        f"model-{number:05}-of-{len(groups):05}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


class NewFolder:
    """A folder of weights that gets its name when it is complete. Used by one process.

    Attributes:
        scratch: the folder until then.
    """

    def __init__(
        self,
        target: Path,
        described: Mapping[str, torch.Tensor],
        max_bytes: int,
        one_file: str = ONE_FILE,
    ) -> None:
        """Write the heads of all files, and the index if there are several.

        Args:
            target: nothing is there.
            described: tensors on the meta device by name.
            max_bytes: of a file.
            one_file: the name of the file, where it is one.
        """
        self._target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self.scratch = folder = Path(
            tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent)
        )
        self._files: dict[str, SafetensorsFile] = {}
        files = in_parts(described, max_bytes, one_file)
        for file, names in files.items():
            tensors = [
                WeightDescription(name, described[name].dtype, tuple(described[name].shape))
                for name in names
            ]
            self._files |= dict.fromkeys(names, SafetensorsFile(folder / file, tensors))
        if len(files) > 1:
            total = sum(tensor.nbytes for tensor in described.values())
            index = {
                "metadata": {"total_size": total},
                "weight_map": {name: file for file, names in files.items() for name in names},
            }
            (folder / INDEX).write_text(
                json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write the bytes of a tensor to its place."""
        self._files[name].write(name, tensor)

    def finish(self) -> None:
        """Give the folder its name, once the disk has all of it."""
        os.umask(mask := os.umask(0))
        self.scratch.chmod(0o777 & ~mask)
        _sync([*self.scratch.rglob("*"), self.scratch])
        self.scratch.rename(self._target)
        _sync([self._target.parent])

    def remove(self) -> None:
        """Remove what isn't finished."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def _sync(paths: Iterable[Path]) -> None:
    """Make the disk keep what these files and folders hold."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
