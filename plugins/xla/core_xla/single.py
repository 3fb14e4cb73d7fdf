"""One process, one device of XLA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.strategies import SingleDeviceStrategy
from core_xla import library
from core_xla.lazy import LazyExecution

if TYPE_CHECKING:
    import torch


class SingleDeviceXLAStrategy(LazyExecution, SingleDeviceStrategy):
    """Trains on one device of XLA, and cuts the graph once a step."""

    def __init__(
        self,
        device: torch.device | str | None = None,
        *,
        prefetch_batches: int = 2,
        debug: bool = False,
        **parts: Any,
    ) -> None:
        """Choose the device, or leave it to the accelerator.

        Args:
            device: where the model and its batches are; or its name, such as `"xla:0"`.
            prefetch_batches: batches that are on their way to the device before the step asks for
                them, of loaders with workers; 0 for none.
            debug: let torch_xla tell why it cuts or compiles a graph.
            parts: `accelerator`, `precision_plugin`, `checkpoint_io`, as every strategy takes them.
        """
        super().__init__(device, **parts)
        self.prefetch_batches, self.debug = prefetch_batches, debug

    def setup_distributed(self) -> None:
        """This process; idempotent. Begin to use torch_xla's devices."""
        library.begin(1, debug=self.debug)


SingleXLAStrategy = SingleDeviceXLAStrategy
SingleTPUStrategy = SingleDeviceXLAStrategy
