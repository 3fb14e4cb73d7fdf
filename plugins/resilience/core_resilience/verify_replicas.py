"""Compares what ranks must have alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from core.callbacks import Callback
from core.contract import (
    Capability,
    ConfigurationError,
    Difference,
    ReplicasDifferError,
    UnsupportedError,
)
from core.session import RankComparison
from core.trainer import warn_caller
from core_resilience.kept_states import states_of
from core_resilience.layout import replica_groups
from core_resilience.replicated_tensors import replicated_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from core import Strategy, Trainer


class VerifyReplicas(Callback):
    """Compares parameters, buffers and optimizer state of all ranks, which must be alike, bit for
    bit.

    Each rank makes a digest of each tensor, which any single flipped bit changes, and of all
    digests one. That number is exchanged; digests of tensors are only where it differs. Under
    strategies that declare `Capability.REPLICATED_PARAMETERS`, such as ddp, and core-parallel with
    the axes data and shard, where the ranks along data are alike. A run of one process has nothing
    to compare.

    With `on_difference="go_back"` the run goes back to the last state of a `MemoryCheckpoint` that
    isn't newer than the last comparison in which all were alike, and which is kept until the next
    one.

    Attributes:
        differences: all that were found, oldest first.
    """

    def __init__(
        self,
        every_n_steps: int,
        *,
        on_difference: Literal["end", "warn", "go_back"] = "end",
        ignore: Sequence[str] = (),
        max_returns: int = 3,
    ) -> None:
        """Create the callback.

        Args:
            every_n_steps: optimizer steps from one comparison to the next.
            on_difference: end the run by an error, or warn once of each difference and go on, or go
                back to the last state of a `MemoryCheckpoint` in which ranks were alike.
            ignore: names of parameters and buffers that each rank has for itself, also patterns:
                `"*.seen"`.
            max_returns: times that one call of `fit` goes back; the next difference ends it.

        Raises:
            ConfigurationError: arguments that can't be met.
        """
        if every_n_steps < 1 or max_returns < 1 or on_difference not in ("end", "warn", "go_back"):
            raise ConfigurationError(
                f"VerifyReplicas(every_n_steps={every_n_steps!r}, on_difference={on_difference!r}, "
                "max_returns="
                f"{max_returns!r}): expected 1 step or more, 'end', 'warn' or 'go_back', and 1 or "
                "more."
            )
        self.every_n_steps, self.on_difference, self.ignore = (
            every_n_steps,
            on_difference,
            tuple(ignore),
        )
        self.differences: list[Difference] = []
        self.max_returns = max_returns
        self._step_seen = self._step_verified = self._num_returns = 0

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Main process. Refuse a run that can't go back, where it is to.

        Raises:
            ConfigurationError: nothing keeps states.
            UnsupportedError: the strategy can't go back.
        """
        if self.on_difference == "go_back":
            states_of("VerifyReplicas(on_difference='go_back')", trainer)

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Find the ranks that must be alike.

        Raises:
            UnsupportedError: there are none, or it isn't known which.
        """
        strategy, groups = trainer.strategy, replica_groups(trainer.strategy, module)
        if groups is None or (groups.shape[1] == 1 and strategy.world_size > 1):
            raise UnsupportedError(
                f"VerifyReplicas compares ranks that must be alike, and {type(strategy).__name__} "
                "has none, or doesn't say which are. Leave the callback out, or use a strategy "
                "such as ddp, or core-parallel with the axes data and shard.",
                capability=Capability.REPLICATED_PARAMETERS,
            )
        self._group = next(group for group in groups.tolist() if strategy.global_rank in group)
        self._step_verified = self._num_returns = 0
        strategy.session.compares_ranks = False  # this says when, and what is left out

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Note where training begins."""
        self._step_seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Compare, if it is time.

        Raises:
            ReplicasDifferError: they differ, and `on_difference="end"`, or the run can't go back
                any more.
            GoBack: which `fit` catches.
        """
        step = trainer.global_step
        before = self._step_seen
        self._step_seen = step
        if (
            trainer.strategy.world_size > 1
            and step // self.every_n_steps > before // self.every_n_steps
        ):
            difference = self._compare(trainer.strategy, module, step)
            if difference is not None:
                self._answer(difference, trainer)
            elif self.on_difference == "go_back":
                self._step_verified = step
                states_of("VerifyReplicas", trainer).hold(step)

    def _compare(self, strategy: Strategy, module: nn.Module, step: int) -> Difference | None:
        tensors = dict(replicated_tensors(module, strategy.optimizers, self.ignore))
        own = {name: _own_part(tensor) for name, tensor in tensors.items()}
        return RankComparison(
            strategy, strategy.root_device, [(self._group, own)], step
        ).difference()

    def _answer(self, difference: Difference, trainer: Trainer) -> None:
        known = {(each.ranks, each.tensor) for each in self.differences}
        self.differences.append(difference)
        if self.on_difference == "go_back":
            self._go_back(difference, trainer)
        if self.on_difference == "end":
            raise ReplicasDifferError(
                f"{difference} Memory or a device of that machine may be damaged, or the program "
                "changes something on some ranks only (then ignore= leaves it out). Go on from an "
                "earlier checkpoint, without that machine.",
                difference,
            )
        if trainer.is_global_zero and (difference.ranks, difference.tensor) not in known:
            warn_caller(f"VerifyReplicas: {difference} The run goes on.")

    def _go_back(self, difference: Difference, trainer: Trainer) -> NoReturn:
        states = states_of("VerifyReplicas", trainer)
        is_kept = any(step <= self._step_verified for step in states.kept)
        if not is_kept or self._num_returns >= self.max_returns:
            why = (
                f"went back {self._num_returns} times already"
                if is_kept
                else "has no state in which ranks were alike"
            )
            raise ReplicasDifferError(
                f"{difference} The run {why}. Memory or a device of that machine may be damaged: "
                "go on from an earlier checkpoint, without that machine.",
                difference,
            )
        self._num_returns += 1
        if trainer.is_global_zero:
            warn_caller(
                f"VerifyReplicas: {difference} The run goes back to the newest state up to step "
                f"{self._step_verified}, after which all were alike."
            )
        states.go_back(trainer, self._step_verified)


def _own_part(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
