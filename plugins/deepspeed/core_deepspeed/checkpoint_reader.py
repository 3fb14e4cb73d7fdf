"""The folders of DeepSpeed, and the command that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import CheckpointReader
from core_deepspeed.native import NativeCheckpointIO
from core_deepspeed.universal import UniversalCheckpointIO

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_MODEL_FILE = "_model_states.pt"


class DeepSpeedFolderReader(CheckpointReader):
    """Recognizes the folders of DeepSpeed's engine and its universal ones, which CheckpointIOs
    read; no file alone.
    """

    program = "DeepSpeed"

    def recognizes(self, head: bytes) -> bool:
        """False: a file is one rank's part."""
        return False

    def translate(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse: see `recognizes`."""
        raise ValueError("a file of DeepSpeed's is one rank's part")

    def recognizes_folder(self, path: str, names: Collection[str]) -> str | None:
        """The command that reads it, or the folder around it."""
        if UniversalCheckpointIO.last_file in names:
            return f"`core checkpoint convert --from deepspeed_universal {path!r} TARGET` reads it."
        if NativeCheckpointIO.last_file in names and any(Path(path).glob(f"*/*{_MODEL_FILE}")):
            return (
                f"`core checkpoint convert --from deepspeed_native {path!r} TARGET` reads its "
                "weights; a run goes on from it under "
                "DeepSpeedStrategy(deepspeed_checkpoint='native'), if that has saved it."
            )
        if any(name.endswith(_MODEL_FILE) for name in names):
            return f"Name the folder around it, with the file {NativeCheckpointIO.last_file!r}."
        return None
