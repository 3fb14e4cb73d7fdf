"""A checkpoint in one file, as torch.save writes it, with its digest in a second one beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from core.checkpoint.file import torch_file
from core.checkpoint.single_file_io import SingleFileCheckpointIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


class TorchCheckpointIO(SingleFileCheckpointIO):
    """One file for the whole state, which `torch.load(path, weights_only=True)` reads as well.

    Rank 0 writes, all ranks read. Beside `last.ckpt` stands the hidden `.last.ckpt.digest`; every load compares
    the two, and a damaged file is named. Move or copy both. A subclass with `digest_within = True` puts the digest at
    the file's end instead, where torch passes it over; either is read and verified. A file without a digest, from
    elsewhere, is loaded as it is; `core checkpoint verify` reports it.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. On a local file system a
    checkpoint is replaced at once, also when the process or the machine dies; an object store does as well as its own
    move.

    The tensors of a loaded state are in memory and not mapped from the file: they outlive it, and another process that
    replaces it on a shared file system can't take this one down.
    """

    digest_within: ClassVar[bool] = False
    """True for no second file: the digest ends the file."""

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the whole state and its digest.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
        """
        torch_file.write(state, path, is_sealed=self.digest_within)
