"""The exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core_training.averaging.weight_averaging import WeightAveraging

if TYPE_CHECKING:
    import torch
    from torch import nn

    from core_training.trainer import Trainer


class EMA(WeightAveraging):
    """Keeps `average = decay * average + (1 - decay) * weights`, updated after optimizer steps.

    Validation runs use the average, so that checkpoints are judged by it; when fit ends, the module
    gets it. See `WeightAveraging` for where it is saved.
    """

    def __init__(
        self,
        decay: float = 0.999,
        *,
        every_n_steps: int = 1,
        start_step: int = 0,
        use_for_validation: bool = True,
        use_buffers: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        """Create the callback.

        Args:
            decay: weight of the past, 0 to 1.
            every_n_steps: update after every so many optimizer steps.
            start_step: the average begins with the weights after so many optimizer steps.
            use_for_validation: validation runs use the average.
            use_buffers: average buffers too; else they are the model's newest.
            device: where the average is kept, for example `"cpu"`; None is the model's.

        Raises:
            ConfigurationError: a decay or interval that can't be.
        """
        if not 0.0 <= decay <= 1.0:
            raise ConfigurationError(
                f"EMA(decay={decay!r}): expected a number from 0 to 1, such as 0.999."
            )
        if every_n_steps < 1 or start_step < 0:
            raise ConfigurationError(
                f"EMA(every_n_steps={every_n_steps!r}, start_step={start_step!r}): expected "
                "numbers from 1 and from 0."
            )
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        super().__init__(
            get_ema_multi_avg_fn(decay),
            use_buffers=use_buffers,
            device=device,
            evaluates_in_fit=use_for_validation,
            evaluates=use_for_validation,
        )
        self.decay = decay
        self.every_n_steps = every_n_steps
        self.start_step = start_step
        self._step_seen: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # torch's averaging function is a closure, which doesn't pickle.
        return {**super().__getstate__(), "_average_fn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        self.__dict__.update(state)
        self._average_fn = get_ema_multi_avg_fn(self.decay)

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Make room for the average; see `WeightAveraging.on_fit_start`."""
        super().on_fit_start(trainer, module)
        self._step_seen = None

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Note where training begins."""
        self._step_seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after an optimizer step."""
        self.update_after_step(trainer.global_step)

    def update_after_step(self, step: int) -> None:
        """Update the average, if there was an optimizer step since the last one seen; see
        `WeightAveraging`.
        """
        # Within an accumulation window the weights are those of the last step.
        if self._step_seen is None or step == self._step_seen:
            return
        self._step_seen = step
        if step >= self.start_step and step % self.every_n_steps == 0:
            self.update()
