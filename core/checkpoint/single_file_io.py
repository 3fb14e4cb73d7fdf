"""Checkpoints in one file: torch's with a digest beside it, and weights alone as safetensors."""

from __future__ import annotations

import abc
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from core.checkpoint.any_form import dates, formats
from core.checkpoint.any_form_io import AnyFormCheckpointIO
from core.checkpoint.file import safetensors_file, torch_file
from core.checkpoint.joint.agreement import on_rank_zero, together

if TYPE_CHECKING:
    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike


class SingleFileCheckpointIO(AnyFormCheckpointIO):
    """One file, which rank 0 writes and all ranks read. Meant to be subclassed: only `write_file`
    differs.
    """

    layout = "full"

    @abc.abstractmethod
    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the file and its digest, replacing what is there."""

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: on rank 0; nested dicts and lists of plain types, tensors and arrays.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` doesn't hold what this form takes; what
                was at `path` is untouched. Raised on all ranks.
        """

        def write() -> None:
            assert state is not None, "rank 0 has the state of layout 'full'"
            dates.look_beside(path)
            self.write_file(state, path)

        on_rank_zero(collectives, write)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`, also by another CheckpointIO of the core; tensors come
        back on the CPU.

        A file that ends with `.safetensors` and wasn't written by core becomes `{"model": {...}}`.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: not used by layout `full`.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there. Like the others raised on all ranks, if on
                any.
            CheckpointCorruptedError: damaged, or not a checkpoint; the file is named.
            CheckpointError: it can't be read.
        """
        return together(collectives, lambda: formats.load_checkpoint(path))


class TorchCheckpointIO(SingleFileCheckpointIO):
    """One file for the whole state, which `torch.load(path, weights_only=True)` reads as well.

    Rank 0 writes, all ranks read. Beside `last.ckpt` stands the hidden `.last.ckpt.digest`; every
    load compares the two, and a damaged file is named. Move or copy both. A subclass with
    `digest_within = True` puts the digest at the file's end instead, where torch passes it over;
    either is read and verified. A file without a digest, from elsewhere, is loaded as it is;
    `core checkpoint verify` reports it.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. On a
    local file system a checkpoint is replaced at once, also when the process or the machine dies;
    an object store does as well as its own move.

    The tensors of a loaded state are in memory and not mapped from the file: they outlive it, and
    another process that replaces it on a shared file system can't take this one down.
    """

    digest_within: ClassVar[bool] = False
    """True for no second file: the digest ends the file."""

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the whole state and its digest.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
        """
        torch_file.write(state, path, is_sealed=self.digest_within)


class SafetensorsCheckpointIO(SingleFileCheckpointIO):
    """One file of the format safetensors, with the weights of the state and its plain values: no
    run can go on from it.

    Every entry of the state that is a dict of tensors is written as weights: the module of a
    Trainer, the modules that were given to `Fabric.save`. Numbers, texts and other plain values
    stand in the file's metadata. An entry with other tensors or arrays in it, such as an optimizer,
    is refused; only a conversion leaves it out, and says so. Tensors that share memory are written
    once each. The file's digest stands beside it. Needs the package safetensors, and memory for a
    second copy of the weights.
    """

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write `state`, in which there must be weights, and its digest.

        Raises:
            CheckpointError: it can't be written, or something of it would be lost; what was at
                `path` is untouched.
        """
        safetensors_file.write(state, path)

    def convert_checkpoint(
        self, source: PathLike, target: PathLike, *, reader: CheckpointIO, collectives: Collectives
    ) -> None:
        """One process. Write the weights and plain values of another form; a warning names what is
        left out.
        """
        state, left_out = safetensors_file.weights_in(
            reader.load_checkpoint(source, collectives=collectives)
        )
        self.save_checkpoint(state, target, collectives=collectives)
        if left_out:
            warnings.warn(
                f"{str(target)!r} holds weights and plain values. Left out: "
                f"{', '.join(map(repr, left_out))}.",
                stacklevel=2,
            )
