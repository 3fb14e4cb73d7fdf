"""hivemind's optimizer around the user's own: when averaging begins, and what a step is made of."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import hivemind

from core_hivemind.averaging.progress import SwarmProgress
from core_hivemind.averaging.state import State, state_prefix


class SwarmOptimizer(hivemind.Optimizer):  # type: ignore[misc]
    """hivemind's optimizer around the user's own.

    Attributes:
        group_size: peers whose gradients the last step was made of; 1 if ours alone.
    """

    group_size = 1
    _is_loaded = False

    def _make_state_averager(self, **options: Any) -> State:
        return State(
            dht=self.dht,
            prefix=state_prefix(self.run_id),
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=False,
            custom_gradients=False,
            status_loglevel=self.status_loglevel,
            next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode,
            allow_state_sharing=False,  # until it is known that this one's state is the run's
            start=True,
            **options,
        )

    def _make_progress_tracker(self, target_batch_size: int, **options: Any) -> SwarmProgress:
        return SwarmProgress(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **options,
        )

    def _maybe_schedule_gradient_averaging(self) -> None:
        if self.tracker.global_progress.num_peers > 1:
            super()._maybe_schedule_gradient_averaging()

    def _maybe_schedule_state_averaging(self) -> None:
        if self.tracker.global_progress.num_peers > 1:
            super()._maybe_schedule_state_averaging()

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        """Begin a round, or step with all that was summed here; without a round, hivemind may use
        only the last one.
        """
        self._is_loaded = False
        self.group_size = 1
        began = super()._begin_averaging_gradients(grad_scaler)
        if not began and not self._is_loaded:
            self._load_local_gradients_into_optimizer()
        return bool(began)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: Any) -> None:
        if maybe_step_control is not None:
            self._await_round(maybe_step_control)
        super()._average_gradients_and_load_into_optimizer(maybe_step_control)
        if maybe_step_control is not None and not self._is_loaded:
            self.group_size = len(maybe_step_control.result(0))

    def _await_round(self, round_: Any) -> None:
        """Wait for a round, and give it up if nobody is left to meet: hivemind would wait for its
        whole time limit.
        """
        until_s = time.monotonic() + self.averaging_timeout
        while not round_.done() and time.monotonic() < until_s:
            with contextlib.suppress(Exception):  # the round's own too, which hivemind logs
                round_.exception(self.matchmaking_time)
            if not round_.done():
                self.tracker.forget_gone()
                if self.tracker.global_progress.num_peers <= 1:
                    round_.cancel()

    def _load_local_gradients_into_optimizer(self) -> None:
        super()._load_local_gradients_into_optimizer()
        self._is_loaded = True

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the averagers, after their node."""
        for averager in filter(
            None, (getattr(self, "state_averager", None), getattr(self, "grad_averager", None))
        ):
            averager.end()
        if hasattr(self, "state_averager"):
            self.state_averager.step_executor.shutdown()

    def __del__(self) -> None:
        """Nothing: what is left of it ends in `Swarm.leave`."""
