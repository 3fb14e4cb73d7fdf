"""Weights that are NaN or infinite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from core.checkpoint.any_form import formats
from core.checkpoint.state.tree import leaf_name, leaves_of
from core.contract.errors import CheckpointError
from core.contract.sharded_leaf import TensorDescription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.folder.reader import FolderReader
    from core.contract.checkpoint_io import PathLike


def has_finite_weights(path: PathLike) -> bool:
    """One process. True if a whole checkpoint is at `path` whose weights are all finite; of a
    folder each part is read.

    False too if core can't read it.
    """
    try:
        folder = formats.open_folder(path)
        if folder.is_file():
            parts = (leaf for _, leaf in leaves_of(formats.load_checkpoint(path)["model"]))
            return all(_is_finite(part) for part in parts)
        return formats.with_folder(folder, lambda reader: all(map(_is_finite, _parts(reader))))
    except (CheckpointError, KeyError):
        return False


def _parts(reader: FolderReader) -> Iterator[torch.Tensor]:
    """The saved parts of the model's tensors, one after the other, on mapped memory."""
    for key_path, leaf in leaves_of(reader.describe(looks=True)["model"], ("model",)):
        if isinstance(leaf, TensorDescription):
            for chunk in reader.chunks.get(leaf_name(key_path), {}).values():
                stop = chunk.position + math.prod(chunk.sizes) * leaf.dtype.itemsize
                yield torch.frombuffer(chunk.file.view(chunk.position, stop), dtype=leaf.dtype)


def _is_finite(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return True
    if leaf.element_size() == 1:  # `isfinite` lacks formats of 8 bits
        leaf = leaf.float()
    return bool(leaf.isfinite().all())
