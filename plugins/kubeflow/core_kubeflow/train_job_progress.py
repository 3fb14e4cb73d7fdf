"""A callback that reports to Kubeflow Trainer how far a run is."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from core import Callback, ConfigurationError
from core.trainer import warn_caller
from core_kubeflow.status_server import StatusServer

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer


class TrainJobProgress(Callback):
    """Writes progress, the seconds that are left, and metrics to the status of the TrainJob that
    the run is in.

    Rank 0 sends, in a thread of its own, so that training waits for no answer. A server that
    refuses or isn't there is a warning, once a fit. Outside of a TrainJob, and in one that reports
    no status, the callback does nothing.

    Progress is that of whichever of `max_steps`, `max_epochs` and `max_time` is nearest to its end,
    and 100 % is the end of `fit`. Metrics are the newest values of all that was logged.
    """

    def __init__(self, *, every_s: float = 5.0) -> None:
        """Create the callback.

        Args:
            every_s: seconds from one report to the next. Kubeflow asks for five or more.

        Raises:
            ConfigurationError: no such number of seconds.
        """
        if not every_s > 0:
            raise ConfigurationError(
                f"TrainJobProgress(every_s={every_s}): expected seconds above 0."
            )
        self.every_s = every_s
        self._server: StatusServer | None = None
        self._sender: ThreadPoolExecutor | None = None
        self._sent: Future[None] | None = None
        self._is_due_s = math.inf
        self._has_warned = False

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Report what the run begins with."""
        # asked for on all ranks, since a loader may be set up for it
        steps = trainer.estimated_stepping_batches
        self._is_due_s = math.inf
        self._server = None
        if trainer.is_global_zero:
            self._server = StatusServer.from_environment()
        if self._server is None:
            return
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="progress of the TrainJob")
        self._has_warned = False
        self._num_steps = steps
        self._began_s, self._began_at = time.monotonic(), self._fraction(trainer)
        self._report(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Report, if it is time to."""
        if time.monotonic() >= self._is_due_s:
            self._report(trainer)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """All ranks. Report, if it is time to: a long validation is no standstill."""
        if time.monotonic() >= self._is_due_s:
            self._report(trainer)

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Report the end, for whose answer the run waits."""
        if self._server is not None:
            self._wait()
            self._report(trainer, is_end=True)
            self._wait()

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """All ranks. The thread ends with `fit`."""
        if self._sender is not None:
            self._sender.shutdown()
        self._server = self._sender = self._sent = None
        self._is_due_s = math.inf

    def _report(self, trainer: Trainer, *, is_end: bool = False) -> None:
        self._is_due_s = time.monotonic() + self.every_s
        if self._sent is not None:
            if not self._sent.done():  # the server is slow: the next report has newer values
                return
            self._look_at(self._sent)
        assert self._server is not None
        assert self._sender is not None
        fraction, remaining_s = self._estimate(trainer)
        if is_end:
            fraction, remaining_s = 1.0, 0.0
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self._sent = self._sender.submit(self._server.post, fraction, remaining_s, metrics)

    def _wait(self) -> None:
        if self._sent is not None:
            self._look_at(self._sent)
            self._sent = None

    def _look_at(self, sent: Future[None]) -> None:
        """Wait for a report's answer, and warn if it is the first that is bad."""
        error = sent.exception()
        if error is not None and not self._has_warned:
            self._has_warned = True
            warn_caller(
                "The progress of this TrainJob isn't reported, and training goes on. The server: "
                f"{error}"
            )

    def _estimate(self, trainer: Trainer) -> tuple[float | None, float | None]:
        """The fraction that is done, below 1 before the end; and the seconds that are left at this
        run's speed.
        """
        fraction = self._fraction(trainer)
        if fraction is None or self._began_at is None:
            return None, None
        done = fraction - self._began_at
        if done <= 0:
            return min(fraction, 0.99), None
        took_s = time.monotonic() - self._began_s
        return min(fraction, 0.99), took_s / done * (1 - fraction)

    def _fraction(self, trainer: Trainer) -> float | None:
        """The fraction of the nearest limit; None if the run has none."""
        fractions = []
        if math.isfinite(self._num_steps) and self._num_steps > 0:
            fractions.append(trainer.global_step / self._num_steps)
        max_time = trainer.options.max_time
        if max_time is not None:
            fractions.append(trainer.progress.elapsed_s / max_time.total_seconds())
        if not fractions:
            return None
        return min(max(fractions), 1.0)
