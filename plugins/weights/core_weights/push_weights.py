"""A callback that sends the weights of a run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Callback, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from core import Trainer
    from core_weights.sink import Sink, WeightSource


class PushWeights(Callback):
    """Sends the module's weights to a sink: when `fit` begins or goes on, and every so many
    optimizer steps.

    The sink is closed with `fit`. A `fast_dev_run` sends too.
    """

    def __init__(
        self,
        to: Sink,
        *,
        every_n_steps: int = 1,
        dtype: torch.dtype | None = None,
        stream: Callable[[Trainer, nn.Module], WeightSource] | None = None,
    ) -> None:
        """Create the callback.

        Args:
            to: where they go: `FolderSink`, `GroupSink`, or another `Sink`.
            every_n_steps: optimizer steps from one version to the next.
            dtype: of floating-point tensors there, but for those kept in float32; None keeps each
                one's.
            stream: makes the stream, such as `core_transformers.PretrainedWeights`; None for
                `trainer.weights()`.

        Raises:
            ConfigurationError: such a number of steps, or both `dtype` and `stream`.
        """
        if every_n_steps < 1:
            raise ConfigurationError(
                f"PushWeights(every_n_steps={every_n_steps}): expected 1 or more."
            )
        if dtype is not None and stream is not None:
            raise ConfigurationError(
                "PushWeights(dtype=..., stream=...): the stream has a dtype of its own. Expected "
                "one of the two, such as stream=partial(PretrainedWeights, dtype=torch.bfloat16)."
            )
        self.to, self.every_n_steps, self.dtype, self.stream = to, every_n_steps, dtype, stream
        self._opened: WeightSource | None = None
        self._sent_step = 0

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Send what training begins with."""
        self._opened = (
            trainer.weights(dtype=self.dtype)
            if self.stream is None
            else self.stream(trainer, module)
        )
        self._send(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Send the weights if enough steps have been made since."""
        if trainer.global_step >= self._sent_step + self.every_n_steps:
            self._send(trainer)

    def on_exception(self, trainer: Trainer, module: nn.Module, exception: BaseException) -> None:
        """All ranks. Close the sink, to which no end is announced."""
        self.to.close(exception)

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """All ranks. Close the sink after `fit`."""
        self._opened = None
        if stage == "fit":
            self.to.close()

    def _send(self, trainer: Trainer) -> None:
        assert self._opened is not None
        self.to.send(trainer, self._opened)
        self._sent_step = trainer.global_step
