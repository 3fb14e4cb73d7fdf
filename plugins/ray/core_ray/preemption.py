"""The end of a run before Ray takes one of its machines away."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from core import Callback, ConfigurationError
from core_ray import library
from core_ray.environment import RayTrainEnvironment

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer


class RayTrainPreemption(Callback):
    """Ends `fit` as SIGTERM does, once Ray Train says that a machine of the run will be taken away.

    All ranks stop after the same optimizer step, save where that is asked for
    (`ModelCheckpoint(save_on_exception=True)`), and `fit` raises `SystemExit`. Ray Train then
    starts the training function again on other machines, as `FailureConfig(max_failures=...)`
    allows, and goes on there with `fit(..., ckpt_path="last")`. Outside of Ray Train the callback
    does nothing.

    The ranks ask about every so many seconds, at the end of a batch. Ray's question waits for all
    of them.
    """

    def __init__(self, *, every_s: float = 1.0) -> None:
        """Create the callback.

        Args:
            every_s: seconds from one question to the next. Ray itself looks every five.

        Raises:
            ConfigurationError: no such number of seconds.
        """
        if not every_s > 0:
            raise ConfigurationError(
                f"RayTrainPreemption(every_s={every_s}): expected seconds above 0."
            )
        self.every_s = every_s
        self._is_asking = False

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Begin to ask, if Ray Train has started them."""
        self._is_asking = isinstance(trainer.strategy.cluster_environment, RayTrainEnvironment)
        self._num_batches = self._num_left = 1
        self._asked_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Ask if it is time to, and end the run if a machine is to go: the ranks agree
        on the step.
        """
        self._num_left -= 1
        if not self._is_asking or self._num_left > 0:
            return
        if library.load("ray.train").get_preemption_info() is not None:
            self._is_asking = False
            trainer.signals.signal = signal.SIGTERM
            trainer.should_stop = True  # so that a single process looks at it after this step
            return
        self._num_batches = self._num_left = trainer.strategy.broadcast(self._next_batches())

    def _next_batches(self) -> int:
        """The batches until the next question, by this rank's clock; twice as many as before it at
        most.
        """
        now_s = time.monotonic()
        elapsed_s, self._asked_s = now_s - self._asked_s, now_s
        return max(
            1,
            min(
                int(self._num_batches * self.every_s / max(elapsed_s, 1e-9)), 2 * self._num_batches
            ),
        )
