"""State that would end with `fit`, kept for a checkpoint that is saved after it has returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.checkpoint import collect_random_state
from core.contract import Capability, KeepsRankState
from core.data import map_leaves
from core.session import UserData
from core_training.logging import running_metrics
from core_training.run import FinishedFit, Position

if TYPE_CHECKING:
    from torch import nn

    from core.contract import Strategy
    from core_training.run import Run

# With these, an optimizer isn't torch's own over whole parameters: it is of shards, an engine or a
# compiled program.
OWN_OPTIMIZERS = (
    Capability.SHARDED_STATE
    | Capability.JOINT_SETUP
    | Capability.MAKES_OPTIMIZERS
    | Capability.COMPILED_STEP
    | Capability.ELASTIC
)


def position_of(run: Run) -> Position:
    """All ranks, while a stage runs."""
    strategy = run.strategy
    random = collect_random_state(strategy.accelerator, strategy.root_device)
    if run.random_state_at_opening is not None:
        random["at_opening"] = run.random_state_at_opening
    loaders: dict[str, object] = {}
    if run.loaders.has_position:
        loaders["loaders"] = UserData(run.loaders.state_dict(run.progress.batch))
    rank = {
        "share": share_of(strategy)[0],
        "random": random,
        "metrics": running_metrics.collect(run.logged, run.module),
    }
    return Position(rank, loaders)


def finished_fit_of(run: Run) -> FinishedFit | None:
    """All ranks, at the end of `fit`. None if the optimizers end with the stage."""
    strategy = run.strategy
    # Shards stay on their ranks; all others end with the stage.
    ends = OWN_OPTIMIZERS & ~Capability.SHARDED_STATE
    if not strategy.launcher.calls_in_place or strategy.capabilities & ends:
        return None
    rank_state = None
    if isinstance(strategy, KeepsRankState):
        rank_state = map_leaves(on_cpu, strategy.rank_state_dict())
    return FinishedFit(
        list(strategy.optimizers), list(strategy.lr_schedulers), position_of(run), rank_state
    )


def on_cpu(leaf: Any) -> Any:
    """A tensor on the CPU; anything else as it is."""
    if isinstance(leaf, Tensor):
        return leaf.cpu()
    return leaf


def still_trains(finished: FinishedFit, module: nn.Module) -> bool:
    """True if the optimizers still train the module's parameters. A teardown may have replaced
    those.
    """
    own = {id(parameter) for parameter in module.parameters()}
    return all(
        id(parameter) in own
        for optimizer in finished.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def share_of(strategy: Strategy) -> tuple[int, int]:
    """The number of this rank's shard of the data, and of all shards, among the ranks that know of
    each other.
    """
    if strategy.session.has_peers:
        return strategy.data_parallel_rank, strategy.data_parallel_size
    return 0, 1
