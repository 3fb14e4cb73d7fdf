"""Converts a checkpoint from one form to another."""

from __future__ import annotations

import os
from functools import cached_property
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
    alone = _PassedOn(source if reader is None else None)
    try:
        writer.convert_checkpoint(
            source, target, reader=reader or DistributedCheckpointIO(), collectives=alone
        )
    finally:
        writer.teardown()


class _PassedOn:
    """One process, which passes on the writer of the original."""

    rank = 0
    size = 1

    def __init__(self, source: PathLike | None) -> None:
        self._source = source

    @cached_property
    def writer(self) -> Mapping[str, Any]:
        """The writer of the original, if it is of one of the core's forms. A CheckpointIO that
        reads others' folders by itself never asks.
        """
        if self._source is None:
            return {}
        folder = formats.open_folder(self._source)
        if folder.is_file():
            return {}
        return formats.with_folder(folder, lambda reader: reader.manifest.writer)

    def barrier(self) -> None:
        """Return at once: there is no other rank to wait for."""

    def broadcast_object(self, obj: object, src: int = 0) -> Any:
        return obj

    def gather_objects(self, obj: object, dst: int = 0) -> list[Any] | None:
        return [obj]

    def in_background(self) -> Collectives:
        return self
