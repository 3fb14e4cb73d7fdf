"""The state after the last steps in the memory of every node, which outlives the processes and
costs no disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from core.callbacks import Callback, GoBack, check_int
from core.checkpoint import TorchCheckpointIO, to_plain, verify_checkpoint
from core.contract import (
    Capability,
    CheckpointError,
    CheckpointIO,
    CheckpointNotFoundError,
    ConfigurationError,
    UnsupportedError,
)
from core.strategies import ParallelStrategy
from core_neighbour.in_memory import folder_name, is_own_folder, memory_folder
from core_neighbour.neighbour_io import NeighbourCheckpointIO

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer
    from core.contract import Collectives, PathLike

_CANT_GO_BACK = Capability.OWNS_STEP | Capability.COMPILED_STEP | Capability.ELASTIC
"""Engines, whose state isn't only what they load; programs that make several steps; ranks that come
and go.
"""
_SHARED_BY_ALL = ("model", "optimizers")
"""The sections of a checkpoint that replicas have alike; the others are rank 0's."""


class MemoryCheckpoint(Callback):
    """Keeps the state after the newest step in the memory of each node, in files that outlive the
    processes.

    `fit(ckpt_path="last")` goes on from it if any node that is left has it, and it is newer than
    what a ModelCheckpoint has saved; nodes without it get it from that one. So a node that is lost
    costs the step that was running and the one that was being kept, at most. It is no checkpoint
    for other purposes: it ends with the run, or with the machines.

    Where ranks have all parameters alike, as under `ddp`, each node keeps its own copy, and only
    what rank 0 alone knows crosses the network. Where each has a shard, as under `fsdp`, each keeps
    its own, and gives it to the next node, so that two nodes that are lost at once may be too many.

    With `go_back` a callback goes on from one of the last states, in the same processes and the
    same `fit`.

    Attributes:
        kept: optimizer steps after which states of this run are kept, oldest first; the same on all
            ranks.
    """

    runs_last = True
    _shards: NeighbourCheckpointIO | None = None

    def __init__(
        self, every_n_train_steps: int = 1, folder: PathLike | None = None, *, keep: int = 1
    ) -> None:
        """Create the callback.

        Args:
            every_n_train_steps: optimizer steps from one to the next. The training thread keeps the
                state: with two ranks on two CPU cores, such a step took 1.8 to 2.1 times the CPU
                time with 100 MB of weights and Adam, and 4 to 6 times with 4 KB (8 to 12 ms more).
                With n, one of n steps pays that, and a lost node costs n steps at most.
            folder: a local folder in memory; None is that of the variable `CORE_MEMORY_FOLDER`, or
                `/dev/shm`, or the temporary folder where there is none.
            keep: the last states that are kept, each of which takes as much memory.
        """
        check_int(
            "MemoryCheckpoint",
            "every_n_train_steps",
            every_n_train_steps,
            least=1,
            meaning="a number of steps",
        )
        check_int("MemoryCheckpoint", "keep", keep, least=1, meaning="a number of states")
        self.every_n_train_steps, self.keep = every_n_train_steps, keep
        self.kept: list[int] = []
        self._folder = folder
        self._step_seen = self._held_step = 0

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse strategies whose ranks differ, and can't say in what, or can't tell each other.

        Raises:
            UnsupportedError: it is one of those.
        """
        strategy = trainer.strategy
        name, capabilities = type(strategy).__name__, strategy.capabilities
        is_alone = strategy.num_processes_per_node * strategy.num_nodes == 1
        if is_alone or Capability.REPLICATED_PARAMETERS in capabilities:
            return
        if Capability.SHARDED_STATE not in capabilities or not isinstance(
            strategy, ParallelStrategy
        ):
            raise UnsupportedError(
                "MemoryCheckpoint keeps a whole copy on each node, or the shards of ranks in a "
                f"process group of torch. The ranks of {name} don't have the same parameters, nor "
                "such shards. Use ddp, fsdp, or a ModelCheckpoint.",
                capability=Capability.REPLICATED_PARAMETERS,
            )
        if strategy.checkpoint_io.saves_from_all_ranks:
            raise UnsupportedError(
                f"MemoryCheckpoint takes shards from {name}, whose engine writes its own files "
                f"here ({type(strategy.checkpoint_io).__name__}). Leave that layout out, or use a "
                "ModelCheckpoint.",
                capability=Capability.SHARDED_STATE,
            )

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Release the process group, which ends, and what was known of its run."""
        self._shards, self.kept, self._held_step = None, [], 0

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Forget what an earlier run has left, if this one begins anew."""
        self._step_seen = trainer.global_step
        if trainer.ckpt_path is None:
            self._forget(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the state after an optimizer step."""
        step, before = trainer.global_step, self._step_seen
        if (
            step // self.every_n_train_steps == before // self.every_n_train_steps
            or trainer.count_unfinished()
        ):
            return
        self._step_seen = step
        # What other callbacks make of this step belongs to its state.
        trainer.events.afterwards(partial(self._keep, trainer, step))

    def hold(self, step: int) -> None:
        """All ranks. Keep the newest state up to this step too, until this is called again."""
        self._held_step = step

    def go_back(self, trainer: Trainer, step: int | None = None) -> NoReturn:
        """All ranks, in `on_train_batch_end` where no accumulation window has begun. Go on from a
        state that is kept.

        Its module, optimizers, schedulers, random state, position in the data, callbacks and
        metrics are restored as in a run that resumes, and the training loop begins again, with
        `on_train_start`. Later states are removed. A state that is damaged on any node is passed
        over.

        Args:
            trainer: that runs `fit`.
            step: the newest state up to this step, by what rank 0 says; None for the newest.

        Raises:
            GoBack: always, but for what follows; `fit` catches it.
            CheckpointNotFoundError: no such state is kept.
            UnsupportedError: the strategy can't go back.
            ConfigurationError: an accumulation window has begun.
        """
        check_goes_back("MemoryCheckpoint", trainer)
        if trainer.count_unfinished():
            raise ConfigurationError(
                "MemoryCheckpoint.go_back was called within an accumulation window, whose "
                "gradients belong to no state. Call it in on_train_batch_end where "
                "trainer.count_unfinished() is 0."
            )
        strategy = trainer.strategy
        most = strategy.broadcast(trainer.global_step if step is None else step)
        found = self._newest_of(trainer, [each for each in self.kept if each <= most])
        if found is None:
            raise CheckpointNotFoundError(
                f"MemoryCheckpoint keeps no state up to step {most}: it has those after steps "
                f"{self.kept}. Keep more (keep=...), or more often."
            )
        self.kept = [each for each in self.kept if each <= found]
        self._remove_others(trainer)
        raise GoBack(self._own_folder(trainer) / _name_of(found))

    def on_fit_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Forget it: training has come to its end."""
        self._forget(trainer)

    def newest(self, trainer: Trainer, other: str | None) -> str | None:
        """All ranks. The path on this node of what the nodes that are left have kept last; None if
        `other` is newer.

        Args:
            trainer: that looks for something to go on from.
            other: rank 0's newest checkpoint of another kind.
        """
        strategy = trainer.strategy
        if (shards := self._shards_of(trainer)) is not None:
            found = shards.newest(
                self._own_folder(trainer), collectives=trainer.session.collectives
            )
            is_newer = (
                found is not None and strategy.broadcast(_changed_at(other)) * 1e9 <= found[1]
            )
            return (
                str(self._own_folder(trainer, make=True) / found[0])
                if found is not None and is_newer
                else None
            )
        own = self._newest_own(trainer)
        offers = strategy.broadcast(
            strategy.gather_objects(own and (_step_of(own), own.stat().st_mtime))
        )
        newest = max(filter(None, offers), default=None)
        if newest is None or strategy.broadcast(_changed_at(other)) > newest[1]:
            return None
        content = None
        source = offers.index(newest)
        if any(offer is None or offer[0] != newest[0] for offer in offers):
            content = strategy.broadcast(
                own.read_bytes() if own and strategy.global_rank == source else None, source
            )
        path = self._own_folder(trainer, make=True) / _name_of(newest[0])
        if content is not None and strategy.local_rank == 0 and (own is None or own != path):
            _replace(path, content)
        strategy.barrier("MemoryCheckpoint")
        return str(path)

    def storage_of(self, path: PathLike) -> CheckpointIO | None:
        """The CheckpointIO that reads what `newest` has found; None if any does."""
        return self._shards if self._shards is not None and self._shards.exists(path) else None

    def _shards_of(self, trainer: Trainer) -> NeighbourCheckpointIO | None:
        """The storage of shards; None where all ranks have the same."""
        strategy = trainer.strategy
        has_shards = Capability.SHARDED_STATE in strategy.capabilities
        if (
            self._shards is None
            and has_shards
            and Capability.REPLICATED_PARAMETERS not in strategy.capabilities
        ):
            self._shards = NeighbourCheckpointIO(strategy.node_rank)
        return self._shards

    def _keep(self, trainer: Trainer, step: int) -> None:
        """All ranks. Write the new one, then remove those that aren't to be kept any more."""
        strategy = trainer.strategy
        path = self._own_folder(trainer, make=True) / _name_of(step)
        storage = self._shards_of(trainer) or _OnEachNode(writes=strategy.local_rank == 0)
        with trainer.profile("save_in_memory"):
            trainer.save_snapshot(path, storage)
        held = [each for each in (*self.kept, step) if each <= self._held_step][-1:]
        self.kept = sorted({*held, *[*self.kept, step][-self.keep :]})
        self._remove_others(trainer)

    def _remove_others(self, trainer: Trainer) -> None:
        """Remove from this node what isn't kept."""
        if trainer.strategy.local_rank == 0:
            names = tuple(map(_name_of, self.kept))
            for old in self._own_folder(trainer).iterdir():
                # it is part of the name of its digest
                if not any(name in old.name for name in names):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()

    def _newest_of(self, trainer: Trainer, steps: list[int]) -> int | None:
        """All ranks. The newest of these states that is whole on all nodes."""
        strategy, folder = trainer.strategy, self._own_folder(trainer)
        if (shards := self._shards_of(trainer)) is not None:
            names = {_name_of(step) for step in steps}
            found = shards.newest(folder, collectives=trainer.session.collectives, names=names)
            return None if found is None else _step_of(Path(found[0]))
        for step in reversed(steps):
            # The first rank of a node has written it, perhaps after the others came here.
            is_here = strategy.local_rank > 0 or _is_whole(folder / _name_of(step))
            if strategy.broadcast(all(strategy.gather_objects(is_here) or ())):
                return step
        return None

    def _newest_own(self, trainer: Trainer) -> Path | None:
        kept = sorted(self._own_folder(trainer).glob("step-*.ckpt"), key=_step_of, reverse=True)
        return next(filter(_is_whole, kept), None)

    def _forget(self, trainer: Trainer) -> None:
        if trainer.strategy.local_rank == 0:
            shutil.rmtree(self._own_folder(trainer), ignore_errors=True)

    def _own_folder(self, trainer: Trainer, *, make: bool = False) -> Path:
        """The folder of this run's states. It lies among those of other users, who may have made
        one of its name.

        Raises:
            ConfigurationError: what is there isn't a folder of this user's in which nobody else
                writes.
        """
        environment = trainer.strategy.cluster_environment
        job = (environment.job_id() if environment is not None else None) or "run"
        folder = memory_folder(self._folder) / folder_name(job, trainer.default_root_dir)
        if make:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if os.path.lexists(folder) and not is_own_folder(folder):
            _refuse_foreign(folder, folder.lstat())
        return folder


def check_goes_back(who: str, trainer: Trainer) -> None:
    """Refuse strategies that can't go back to a state within `fit`.

    Args:
        who: goes back.
        trainer: with the strategy.

    Raises:
        UnsupportedError: it is one of those.
    """
    strategy = trainer.strategy
    if (
        strategy.capabilities & _CANT_GO_BACK
        or Capability.BIT_EXACT_RESUME not in strategy.capabilities
    ):
        raise UnsupportedError(
            f"{who} can't go back under {type(strategy).__name__}, which steps by itself, or "
            "doesn't go on from a state exactly. Use a strategy such as ddp or fsdp, or end the "
            "run and go on from a checkpoint.",
            capability=Capability.BIT_EXACT_RESUME,
        )


class _OnEachNode(CheckpointIO):
    """Writes one file on each node: the parameters and optimizers that it has itself, and all else
    of rank 0.
    """

    layout = "full"
    saves_from_all_ranks = True

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        assert state is not None, "each rank has a state"
        rest = {name: part for name, part in state.items() if name not in _SHARED_BY_ALL}
        rest = collectives.broadcast_object(to_plain(rest) if collectives.rank == 0 else None)
        if self._writes:
            own = {name: state[name] for name in _SHARED_BY_ALL if name in state}
            TorchCheckpointIO().write_file({**own, **rest}, path)

    def load_checkpoint(self, path: Any, *, collectives: Any, state: Any = None) -> dict[str, Any]:
        raise NotImplementedError("what was kept is loaded as any other checkpoint")

    def remove_checkpoint(self, path: Any, *, collectives: Any) -> None:
        raise NotImplementedError("the callback removes it")


def _refuse_foreign(folder: Path, found: os.stat_result) -> NoReturn:
    raise ConfigurationError(
        f"MemoryCheckpoint keeps its states in {folder}: expected a folder of this user "
        f"({os.geteuid()}), in which nobody else writes, and found {stat.filemode(found.st_mode)} "
        f"of user {found.st_uid}, who may have put a state there. Delete it, or pass another "
        "place: MemoryCheckpoint(folder=...), or CORE_MEMORY_FOLDER."
    )


def _name_of(step: int) -> str:
    return f"step-{step:012}.ckpt"


def _step_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _is_whole(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _changed_at(path: str | None) -> float:
    """Modification time; 0.0 for a missing or a remote checkpoint."""
    return os.path.getmtime(path) if path is not None and os.path.exists(path) else 0.0


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)
