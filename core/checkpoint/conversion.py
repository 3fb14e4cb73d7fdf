"""From one form of checkpoint to another."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.checkpoint import formats
from core.checkpoint.distributed_io import DistributedCheckpointIO
from core.checkpoint.safetensors_io import SafetensorsCheckpointIO
from core.checkpoint.torch_io import TorchCheckpointIO
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike

FORMS = ("distributed", "torch", "safetensors")


def convert_checkpoint(source: PathLike, target: PathLike, form: str, *, reader: CheckpointIO | None = None) -> None:
    """One process. Read the checkpoint at `source`, of any form, and write it to `target` in another.

    Args:
        source: a local path or a URL.
        target: likewise; nothing may be there.
        form: `"distributed"` for a folder, `"torch"` for a file, `"safetensors"` for the weights alone.
        reader: what can read `source`; None for the core's own forms.

    Raises:
        CheckpointError: `source` can't be read, or something is at `target`.
    """
    if formats.open_place(target).exists():
        raise CheckpointError(f"Something is at {os.fspath(target)!r} already. Name a place that is free.")
    if reader is None:
        state, alone = formats.load_checkpoint(source), _Alone(_writer_of(source))
    else:
        alone = _Alone({})
        state = reader.load_checkpoint(source, collectives=alone)
    _io_of(form).save_checkpoint(state, target, collectives=alone)


def _io_of(form: str) -> CheckpointIO:
    if form == "distributed":
        return DistributedCheckpointIO()
    return TorchCheckpointIO() if form == "torch" else SafetensorsCheckpointIO()


def _writer_of(path: PathLike) -> Mapping[str, Any]:
    folder = formats.open_place(path)
    return {} if folder.is_file() else formats.with_folder(folder, lambda opened: opened.manifest.writer)


class _Alone:
    """One process, which hands on who wrote the original."""

    rank, size = 0, 1

    def __init__(self, writer: Mapping[str, Any]) -> None:
        self.writer = writer

    def barrier(self) -> None:
        """Nobody to wait for."""

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return obj

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        return [obj]

    def in_background(self) -> Collectives:
        return self
