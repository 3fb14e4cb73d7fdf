"""Logs the speed of training, and its use of the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.data import size_of
from core_training.monitors.step_monitor import StepMonitor
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from core_training.trainer import Trainer


class ThroughputMonitor(StepMonitor):
    """Logs batches, samples, tokens and FLOPs a second, and the model's FLOPs utilization.

    Measured from one log to the next, every `log_every_n_steps`, without the time of validation
    runs. The device is waited for at those steps only. Figures are of the whole run, on all
    devices; utilization is of a device.

    `throughput/batches_per_s`, `samples_per_s`, `tokens_per_s`, `flops_per_s`,
    `model_flops_utilization` (0 to 1), and the totals `samples` and `tokens`.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int] | None = None,
        num_tokens_fn: Callable[[Any], int] | None = None,
        flops_per_batch: float | Callable[[Any], float] | None = None,
        peak_flops_per_s: float | None = None,
    ) -> None:
        """Create the callback. Functions get a batch on the device; reading its values waits for
        the device each step.

        Args:
            batch_size_fn: samples of a batch; None counts them as `self.log` does: the first
                dimension of its first tensor, unless the batch says it itself.
            num_tokens_fn: tokens of a batch; None doesn't count tokens.
            flops_per_batch: floating-point operations of forward and backward for one batch on one
                device, a number or a function of the batch.
                `torch.utils.flop_counter.FlopCounterMode` measures it.
            peak_flops_per_s: what the device could do in this precision at best, from its data
                sheet: 989e12 for bfloat16 on an H100.

        Raises:
            ConfigurationError: a peak without FLOPs, or one that isn't positive.
        """
        if peak_flops_per_s is not None and (flops_per_batch is None or peak_flops_per_s <= 0):
            raise ConfigurationError(
                f"ThroughputMonitor(peak_flops_per_s={peak_flops_per_s!r}, "
                f"flops_per_batch={flops_per_batch!r}): expected both, and a positive peak, or no "
                "peak. Utilization is computed from the two."
            )
        self.batch_size_fn = batch_size_fn
        self.num_tokens_fn = num_tokens_fn
        self.flops_per_batch = flops_per_batch
        self.peak_flops_per_s = peak_flops_per_s
        self.reset_for_fit()
        self._has_warned = False
        self._clear()

    def reset_for_fit(self) -> None:
        """Nothing was counted yet."""
        self._totals = {"samples": 0, "tokens": 0}

    def state_dict(self) -> dict[str, Any]:
        """Samples and tokens so far, on this rank."""
        return dict(self._totals)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from there."""
        self._totals = dict(state)

    def _clear(self) -> None:
        self._batches = 0
        self._samples = 0
        self._tokens = 0
        self._flops = 0.0
        self._paused_s = 0.0
        self._began_s = time.monotonic()

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Begin to measure."""
        super().on_train_start(trainer, module)
        self._wait(trainer)
        self._clear()

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; measure at steps that log metrics."""
        self._batches += 1
        self._samples += self._count_samples(batch)
        if self.num_tokens_fn is not None:
            self._tokens += self.num_tokens_fn(batch)
        if callable(self.flops_per_batch):
            self._flops += self.flops_per_batch(batch)
        elif self.flops_per_batch is not None:
            self._flops += self.flops_per_batch
        if self.is_due(trainer):
            self._measure(trainer)

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The clock stops, when the device has done its training work."""
        self._wait(trainer)
        self._pause_began_s = time.monotonic()

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The clock goes on."""
        self._wait(trainer)
        self._paused_s += time.monotonic() - self._pause_began_s

    def _count_samples(self, batch: Any) -> int:
        if self.batch_size_fn is not None:
            return self.batch_size_fn(batch)
        size = size_of(batch)
        if size is not None:
            return size
        if not self._has_warned:
            self._has_warned = True
            warn_caller(
                "ThroughputMonitor can't tell how many samples a batch has "
                f"({type(batch).__name__} without a tensor that has dimensions), and counts each "
                "as 1. Pass batch_size_fn=.",
            )
        return 1

    def _measure(self, trainer: Trainer) -> None:
        self._wait(trainer)
        seconds = max(time.monotonic() - self._began_s - self._paused_s, 1e-9)
        self._totals["samples"] += self._samples
        self._totals["tokens"] += self._tokens
        # every shard of the data is counted as this one
        num_shards = trainer.strategy.data_parallel_size
        per_s = num_shards / seconds
        values = {
            "batches_per_s": self._batches * per_s,
            "samples_per_s": self._samples * per_s,
            "samples": float(self._totals["samples"] * num_shards),
        }
        if self.num_tokens_fn is not None:
            values["tokens_per_s"] = self._tokens * per_s
            values["tokens"] = float(self._totals["tokens"] * num_shards)
        if self.flops_per_batch is not None:
            values["flops_per_s"] = self._flops * per_s
        if self.peak_flops_per_s is not None:
            values["model_flops_utilization"] = self._flops / seconds / self.peak_flops_per_s
        values = {f"throughput/{name}": value for name, value in values.items()}
        trainer.logged.take(values)
        trainer.log_metrics(values)
        self._clear()

    def _wait(self, trainer: Trainer) -> None:
        # Python runs ahead of the device: without a wait, the clock would measure how fast work is
        # queued.
        trainer.strategy.accelerator.synchronize(trainer.strategy.root_device)
