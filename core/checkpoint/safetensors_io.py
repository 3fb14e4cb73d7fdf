"""Weights alone, in one file that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.checkpoint import safetensors_file
from core.checkpoint.single_file_io import SingleFileCheckpointIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


class SafetensorsCheckpointIO(SingleFileCheckpointIO):
    """One file of the format safetensors, with the weights of the state and nothing else: training can't go on from it.

    Every entry of the state that is a dict of tensors is written: the module of a Trainer, the modules that were given
    to `Fabric.save`. Tensors that share memory are written once each. The file's digest stands beside it.
    Needs the package safetensors (`pip install 'core[safetensors]'`), and memory for a second copy of the weights.
    """

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the weights in `state`, of which there must be some, and their digest.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
        """
        safetensors_file.write(state, path)
