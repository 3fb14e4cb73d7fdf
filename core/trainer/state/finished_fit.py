"""State that would end with `fit`, kept for a checkpoint that is saved after it has returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.checkpoint import collect_random_state
from core.contract import Capability, KeepsRankState
from core.data import map_leaves
from core.session import UserData
from core.trainer.logging import running_metrics

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from core.contract import Strategy
    from core.trainer.run import Run

# With these, an optimizer isn't torch's own over whole parameters: it is of shards, an engine or a compiled program.
OWN_OPTIMIZERS = (
    Capability.SHARDED_STATE
    | Capability.JOINT_SETUP
    | Capability.MAKES_OPTIMIZERS
    | Capability.COMPILED_STEP
    | Capability.ELASTIC
)


@dataclass(frozen=True)
class Position:
    """The state of a run that is nowhere to be found once its stage is over.

    Attributes:
        rank: this rank's shard of the data, random state and running metrics.
        loaders: the position within the data, or nothing.
    """

    rank: dict[str, Any]
    loaders: dict[str, Any]

    @classmethod
    def of(cls, run: Run) -> Position:
        """All ranks, while a stage runs."""
        strategy, loaders = run.strategy, run.loaders
        random = collect_random_state(strategy.accelerator, strategy.root_device)
        if (at_opening := run.random_state_at_opening) is not None:
            random["at_opening"] = at_opening
        return cls(
            rank={
                "share": share_of(strategy)[0],
                "random": random,
                "metrics": running_metrics.collect(run.logged, run.module),
            },
            loaders={"loaders": UserData(loaders.state_dict(run.progress.batch))} if loaders.has_position else {},
        )


@dataclass(frozen=True)
class FinishedFit:
    """The state of a successful fit that a later checkpoint needs. It occupies memory until the next stage.

    Attributes:
        optimizers: in the order of `configure_optimizers`.
        lr_schedulers: of theirs.
        position: at the end of `fit`.
        rank_state: what this rank of a strategy keeps for itself, on the CPU.
    """

    optimizers: list[Optimizer]
    lr_schedulers: list[Any]
    position: Position
    rank_state: dict[str, Any] | None

    @classmethod
    def of(cls, run: Run) -> FinishedFit | None:
        """All ranks, at the end of `fit`. None if the optimizers end with the stage."""
        strategy = run.strategy
        # Shards stay on their ranks; all others end with the stage.
        ends = OWN_OPTIMIZERS & ~Capability.SHARDED_STATE
        if not strategy.launcher.calls_in_place or strategy.capabilities & ends:
            return None
        kept = strategy.rank_state_dict() if isinstance(strategy, KeepsRankState) else None
        rank_state = map_leaves(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, kept)
        return cls(list(strategy.optimizers), list(strategy.lr_schedulers), Position.of(run), rank_state)

    def belongs_to(self, run: Run) -> bool:
        """True if the optimizers still train the module's parameters. A teardown may have replaced those."""
        own = {id(parameter) for parameter in run.module.parameters()}
        return all(
            id(parameter) in own
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


def share_of(strategy: Strategy) -> tuple[int, int]:
    """The number of this rank's shard of the data, and of all shards, among the ranks that know of each other."""
    return (strategy.data_parallel_rank, strategy.data_parallel_size) if strategy.session.has_peers else (0, 1)
