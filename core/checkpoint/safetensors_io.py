"""Weights alone, in one file that other programs read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.checkpoint.file import safetensors_file
from core.checkpoint.single_file_io import SingleFileCheckpointIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike


class SafetensorsCheckpointIO(SingleFileCheckpointIO):
    """One file of the format safetensors, with the weights of the state and its plain values: no run can go on from it.

    Every entry of the state that is a dict of tensors is written as weights: the module of a Trainer, the modules that
    were given to `Fabric.save`. Numbers, texts and other plain values stand in the file's metadata. An entry with other
    tensors or arrays in it, such as an optimizer, is refused; only a conversion leaves it out, and says so.
    Tensors that share memory are written once each. The file's digest stands beside it.
    Needs the package safetensors (`pip install 'core[safetensors]'`), and memory for a second copy of the weights.
    """

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write `state`, in which there must be weights, and its digest.

        Raises:
            CheckpointError: it can't be written, or something of it would be lost; what was at `path` is untouched.
        """
        safetensors_file.write(state, path)

    def convert_checkpoint(
        self, source: PathLike, target: PathLike, *, reader: CheckpointIO, collectives: Collectives
    ) -> None:
        """One process. Write the weights and plain values of another form; a warning names what is left out."""
        state, left_out = safetensors_file.weights_in(reader.load_checkpoint(source, collectives=collectives))
        self.save_checkpoint(state, target, collectives=collectives)
        if left_out:
            warnings.warn(
                f"{str(target)!r} holds weights and plain values. Left out: {', '.join(map(repr, left_out))}.",
                stacklevel=2,
            )
