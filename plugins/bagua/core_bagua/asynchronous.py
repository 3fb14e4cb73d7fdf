"""Ranks train on, while their weights are averaged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from core import Capability, ConfigurationError
from core_bagua.algorithm import Algorithm
from core_bagua.messages import exchange, flat, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from core_bagua.strategy import BaguaStrategy


@dataclass
class _Round:
    """An average that is on its way."""

    work: dist.Work
    before: dict[str, Tensor]
    total: Tensor


@dataclass(kw_only=True)
class AsyncModelAverage(Algorithm):
    """Weights are averaged every so many milliseconds, without waiting for the slowest rank's step.

    Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018; the
    way of Bagua's `AsyncModelAverageAlgorithm`. A rank hands out a copy of its weights, goes on
    training, and adds what the mean differs from that copy when it has come. So the mean of all
    weights loses no step.

    Attributes:
        sync_interval_ms: time from one average's begin to the next, in milliseconds.
        warmup_steps: number of steps in which gradients are averaged instead.
        peer_selection_mode: `"all"`, the one that there is.
        num_steps: so far.
    """

    sync_interval_ms: int = 500
    warmup_steps: int = 0
    peer_selection_mode: str = "all"
    num_steps: int = field(default=0, init=False)
    num_rounds: int = field(default=0, init=False)
    _round: _Round | None = field(default=None, init=False)
    _began_at: float = field(default=0.0, init=False)
    _group: Any = field(default=None, init=False)
    lacks: ClassVar[Capability] = (
        Capability.SEVERAL_OPTIMIZERS | Capability.SEVERAL_MODULES | Capability.BIT_EXACT_RESUME
    )
    takes_scaled: ClassVar[bool] = False

    def problem(self, num_processes: int) -> ConfigurationError | None:
        """Numbers below zero, or another selection of peers."""
        for name in ("sync_interval_ms", "warmup_steps"):
            if type(value := getattr(self, name)) is not int or value < 0:
                return ConfigurationError(f"{name}={value!r}: expected a number from 0.")
        if self.peer_selection_mode != "all":
            return ConfigurationError(
                f"peer_selection_mode={self.peer_selection_mode!r}: async averages with 'all'."
            )
        return None

    def set_up(self, strategy: BaguaStrategy, optimizer: Optimizer) -> None:
        """All ranks. Make a group in which averages don't meet other messages."""
        if strategy.world_size > 1:
            self._group = dist.new_group()

    def after_backward(self, gradients: Mapping[str, Tensor]) -> None:
        """All ranks. Average gradients while it warms up."""
        if self.num_steps < self.warmup_steps:
            exchange(gradients, self._mean, flatten=self.flatten)

    def _mean(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        dist.all_reduce(message)
        return message / dist.get_world_size()

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """Each rank for itself. Take an average that has come, or begin one if it is time."""
        if self._round is not None:
            if self._round.work.is_completed():
                self._take(weights)
        elif (
            self.num_steps >= self.warmup_steps
            and time.monotonic() - self._began_at >= self.sync_interval_ms / 1e3
        ):
            self._begin(weights)

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """Count."""
        self.num_steps += 1

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Begin as many averages as the rank that has begun most, and take them all."""
        most = torch.tensor([self.num_rounds], device=next(iter(weights.values())).device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        while self._round is not None or self.num_rounds < int(most):
            if self._round is None:
                self._begin(weights)
            self._take(weights)

    def _begin(self, weights: Mapping[str, Tensor]) -> None:
        # Of one format in one message, whatever `flatten` says: a round is one message, which is
        # there or not.
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        total = flat(before)
        work = dist.all_reduce(total, group=self._group, async_op=True)
        self._round, self._began_at = _Round(work, before, total), time.monotonic()
        self.num_rounds += 1

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        assert self._round is not None
        self._round.work.wait()
        mean = self._round.total / dist.get_world_size()
        with torch.no_grad():
            for (name, before), part in zip(
                self._round.before.items(), split(self._round.before, mean), strict=True
            ):
                weights[name].add_(part - before)
        self._round = None

    def state_dict(self) -> dict[str, Any]:
        """The number of steps; nothing is on its way in a checkpoint."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self.num_steps = state["num_steps"]
