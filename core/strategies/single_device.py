"""One process, one device: what every other strategy is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, Strategy

if TYPE_CHECKING:
    import torch


class SingleDeviceStrategy(Strategy):
    """Trains on one device, without communication. Meant to be used, and to be subclassed for a
    device of your own.
    """

    def __init__(self, device: torch.device | str | None = None, **parts: Any) -> None:
        """Choose the device, or leave it to the accelerator.

        Args:
            device: where the model and its batches are; or its name, such as `"cpu"` or `"cuda:1"`.
            parts: `accelerator`, `precision_plugin`, `checkpoint_io`, as every strategy takes them.
        """
        if device is not None:
            parts["parallel_devices"] = [device]
        super().__init__(**parts)

    def check(self) -> None:
        """Refuse several devices: they would stay idle without a word.

        Raises:
            ConfigurationError: more than one device or node.
        """
        if len(self.parallel_devices) > 1 or self.num_nodes > 1:
            raise ConfigurationError(
                f"{type(self).__name__} trains on 1 device, and "
                f"devices={len(self.parallel_devices)} with num_nodes={self.num_nodes} were asked "
                "for. Use devices=1, or a strategy for several devices (see `core "
                "list-strategies`)."
            )
