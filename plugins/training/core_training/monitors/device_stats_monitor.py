"""Memory of the device in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core_training.monitors.step_monitor import StepMonitor

if TYPE_CHECKING:
    from torch import nn

    from core_training.trainer import Trainer


class DeviceStatsMonitor(StepMonitor):
    """Logs the `Accelerator.memory_stats` of rank 0's device, as `device/allocated_bytes` and so
    on.

    Logged with the other metrics of steps, every `log_every_n_steps`.
    """

    def __init__(self, cpu_stats: bool = False) -> None:
        """Create the callback.

        Args:
            cpu_stats: also load and memory of the machine, which takes the package psutil.

        Raises:
            ConfigurationError: psutil isn't installed.
        """
        self.cpu_stats = cpu_stats
        if cpu_stats:
            _read_machine()

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if this step's metrics are logged."""
        if not self.is_due(trainer) or not trainer.is_global_zero:
            return
        strategy = trainer.strategy
        values = dict(strategy.accelerator.memory_stats(strategy.root_device))
        if self.cpu_stats:
            values |= _read_machine()
        named = {f"device/{name}": value for name, value in values.items()}
        trainer.log_metrics(named, trainer.global_step)


def _read_machine() -> dict[str, float]:
    try:
        import psutil
    except ImportError as error:
        raise ConfigurationError(
            "DeviceStatsMonitor(cpu_stats=True) needs the package psutil: run `pip install psutil`."
        ) from error
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "cpu_percent": float(psutil.cpu_percent()),
        "cpu_memory_percent": float(memory.percent),
        "cpu_memory_used_bytes": float(memory.used),
        "cpu_swap_percent": float(swap.percent),
    }
