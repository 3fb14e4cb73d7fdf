"""Converts a checkpoint from one form to another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form import formats
from core.checkpoint.distributed_io import DistributedCheckpointIO
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike


def convert_checkpoint(
    source: PathLike, target: PathLike, writer: CheckpointIO, *, reader: CheckpointIO | None = None
) -> None:
    """One process. Read the checkpoint at `source`, of any form, and write it to `target` in
    another.

    Args:
        source: a local path or a URL.
        target: likewise; nothing may be there.
        writer: of the form that is wanted. It is torn down in the end, for one that writes in the
            background.
        reader: what can read `source`; None for the core's own forms.

    Raises:
        CheckpointError: `source` can't be read, or something is at `target`.
    """
    if writer.exists(target) or formats.open_folder(target).exists():
        raise CheckpointError(
            f"Something is at {os.fspath(target)!r} already. Name a place that is free."
        )
    alone = _PassedOn(_writer_of(source) if reader is None else {})
    try:
        writer.convert_checkpoint(
            source, target, reader=reader or DistributedCheckpointIO(), collectives=alone
        )
    finally:
        writer.teardown()


def _writer_of(path: PathLike) -> Mapping[str, Any]:
    """The writer of a checkpoint of one of the core's forms."""
    folder = formats.open_folder(path)
    if folder.is_file():
        return {}
    return formats.with_folder(folder, lambda reader: reader.manifest.writer)


@dataclass
class _PassedOn:
    """One process, which passes on the writer of the original."""

    writer: Mapping[str, Any]
    rank = 0
    size = 1

    def barrier(self) -> None:
        """Return at once: there is no other rank to wait for."""

    def broadcast_object(self, obj: object, src: int = 0) -> Any:
        return obj

    def gather_objects(self, obj: object, dst: int = 0) -> list[Any] | None:
        return [obj]

    def in_background(self) -> Collectives:
        return self
