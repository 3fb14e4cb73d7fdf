"""DeepSpeed's universal checkpoints: a folder for each parameter, which any stage and number of
processes reads.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from core import CheckpointCorruptedError, CheckpointError
from core.checkpoint import load_checkpoint, load_mapped, reported_as_damage
from core_deepspeed import native_files
from core_deepspeed.native_files import DeepSpeedFolderIO

if TYPE_CHECKING:
    from torch import Tensor

    from core import CheckpointIO, Collectives, PathLike

BESIDE = "core.pt"
"""The file with what the core needs to know besides DeepSpeed's files."""

_COMMAND = "core checkpoint convert NATIVE TARGET --to deepspeed_universal"


class UniversalCheckpointIO(DeepSpeedFolderIO):
    """Checkpoints that DeepSpeed's `ds_to_universal` makes from `NativeCheckpointIO`'s folders;
    read without DeepSpeed.

    It holds the whole state. Reading runs nothing that is in it; making one unpickles the native
    folder, as all of DeepSpeed does: make none from what you don't trust.
    """

    last_file = "latest_universal"
    how_to_save = (
        "A universal checkpoint is made from DeepSpeed's own layout: train with "
        f"DeepSpeedStrategy(deepspeed_checkpoint='native'), and then: {_COMMAND}."
    )

    def convert_checkpoint(
        self, source: PathLike, target: PathLike, *, reader: CheckpointIO, collectives: Collectives
    ) -> None:
        """One process. Make a universal checkpoint of the native one at `source`, whole or not at
        all.

        Raises:
            CheckpointError: `source` isn't native, or DeepSpeed can't make a universal one of it;
                `target` isn't free.
        """
        from core_deepspeed import universal_conversion

        files, target = universal_conversion.native_files_of(source), Path(target)
        if target.exists():
            raise CheckpointError(
                f"Something is at {str(target)!r} already. Name a place that is free."
            )
        beside = target.with_name(f".{target.name}.{uuid4().hex}")
        try:
            beside.mkdir(parents=True)
            universal_conversion.make(files, beside, collectives)
            _flush(beside)
            beside.rename(target)
        except OSError as error:
            raise CheckpointError(f"{str(target)!r} can't be written: {error}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The whole state, in the canonical form, on all ranks: tensors are on mapped memory of the
        files.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: a file is missing or damaged.
            CheckpointError: something else than `core checkpoint convert` has made it.
        """
        files, beside = self.files_of(path), Path(path) / BESIDE
        if not beside.is_file():
            raise CheckpointError(
                f"{str(path)!r} has no file {BESIDE!r}, which says what DeepSpeed's files don't: "
                f"core hasn't made it. Make it from DeepSpeed's own layout with: {_COMMAND}."
            )
        content = load_checkpoint(beside)
        with reported_as_damage(f"{str(beside)!r} is not what core has written"):
            return _Whole(files / "zero", content).state


class _Whole:
    """A state, put together from what DeepSpeed has written and what the core has beside it."""

    def __init__(self, folder: Path, beside: dict[str, Any]) -> None:
        self._folder, self._shapes, self._steps = folder, beside["shapes"], beside["steps"]
        self._module: dict[str, Tensor | str] = beside["module"]
        self.state: dict[str, Any] = self._filled(beside["rest"])

    def _filled(self, value: Any) -> Any:
        if native_files.is_mark(value):
            return self._optimizer(value) if native_files.GROUPS in value else self._weights()
        if isinstance(value, dict):
            return {key: self._filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item) for item in value]
        return value

    def _weights(self) -> dict[str, Tensor]:
        return {
            name: self._tensor(value, "fp32") if isinstance(value, str) else value
            for name, value in self._module.items()
        }

    def _optimizer(self, mark: dict[str, Any]) -> dict[str, Any]:
        import torch

        groups = mark[native_files.GROUPS]
        entries = {}
        for name in (name for group in groups for name in group["params"]):
            if isinstance(source := self._module[name], str):
                entries[name] = {
                    key: self._tensor(source, key) for key in ("exp_avg", "exp_avg_sq")
                }
                entries[name]["step"] = torch.tensor(float(self._steps[source]))
        return {"state": entries, native_files.GROUPS: groups}

    def _tensor(self, name: str, key: str) -> Tensor:
        if not native_files.is_name(name):
            raise ValueError(f"a parameter of the name {name!r}")
        file = self._folder / name / f"{key}.pt"
        saved = load_mapped(file)
        try:
            tensor: Tensor = saved["param"] if isinstance(saved, dict) else saved
            if not tensor.is_floating_point():
                raise TypeError(f"a tensor of {tensor.dtype}")
            # at stage 3 DeepSpeed has laid them out in a row
            return tensor.view(self._shapes[name])
        except Exception as error:
            raise CheckpointCorruptedError(
                f"{str(file)!r} isn't what DeepSpeed has written: {error!r:.300}"
            ) from error


def _flush(folder: Path) -> None:
    """Wait until all that is in a folder is on the disk."""
    for path in (folder, *folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
