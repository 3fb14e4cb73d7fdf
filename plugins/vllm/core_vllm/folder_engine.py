"""vLLM's side: an engine of its weight updates, loaded by its workers. Nothing but tensors is read
from the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader import reload

if TYPE_CHECKING:
    import torch


@dataclass
class FolderInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The folder that the trainer writes to."""

    folder: str


@dataclass
class VersionInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The version to load."""

    version: int


class FolderEngine(WeightTransferEngine[FolderInfo, VersionInfo]):  # type: ignore[misc]
    """Loads files of `core_weights.FolderSink`, whose tensors have the names of a checkpoint of the
    model.
    """

    init_info_cls, update_info_cls = FolderInfo, VersionInfo
    _folder: Path | None = None

    def init_transfer_engine(self, init_info: FolderInfo) -> None:
        """Learn where files come from."""
        self._folder = Path(init_info.folder)

    def start_weight_update(self) -> None:
        """Make the model's layers take weights in the form of a checkpoint."""
        reload.initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: VersionInfo) -> None:
        """Load a version."""
        if self._folder is None:
            raise RuntimeError("No folder is known yet: init_weight_transfer_engine comes first.")
        self.model.load_weights(
            self._read(self._folder / f"weights-{int(update_info.version)}.safetensors")
        )

    def finish_weight_update(self) -> None:
        """Bring the layers into the form in which they compute."""
        reload.finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Forget the folder."""
        self._folder = None

    def _read(self, path: Path) -> Iterator[tuple[str, torch.Tensor]]:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  (it isn't a dict)
                yield name, file.get_tensor(name).to(self.device)
