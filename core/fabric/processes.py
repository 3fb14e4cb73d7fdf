"""The processes of a run: making them, knowing which one this is, talking to the others."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import LaunchError
from core.data import map_leaves
from core.fabric.seed import checked_seed, draw_alike, seed_everything
from core.fabric.state import unwrap
from core.watch import begin, end, explain, warn_of_late_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import Strategy
    from core.contract.world import ReduceOp
    from core.session import Session
    from core.watch import WatchdogOptions


class Ranks:
    """The ranks of a `Fabric` or `Trainer`, and `print` on rank 0. Ranks are right once the
    processes are made.
    """

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """The strategy, which has the ranks."""

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return self.strategy.node_rank

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0, which prints, logs and writes what only one may."""
        return self.strategy.is_global_zero

    def print(self, *args: Any, **kwargs: Any) -> None:
        """All ranks. Print on rank 0."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201  # it is what this method is for


class Processes(Ranks):
    """The part of Fabric that works before a model is there. Not meant to be used by itself."""

    strategy: Strategy

    def __init__(self, session: Session, watch: bool | WatchdogOptions | None = None) -> None:
        self.session = session
        self.watch = watch
        self.strategy = session.strategy
        self._is_set_up = False
        self._draw_apart: Callable[[], None] | None = None

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.strategy.root_device

    # processes ------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Main process. Make the processes that the strategy needs and that don't exist yet, and
        join them.

        Args:
            function: called as `function(fabric, *args, **kwargs)` on every rank. A strategy that
                spawns or forks needs one; with all others the script may go on after `launch()` on
                every rank instead.
            args: for the function.
            kwargs: for the function.

        Returns:
            What the function returned on rank 0; with a launcher that calls in place, on each rank
            its own.

        Raises:
            LaunchError: the strategy needs a function and there is none, or processes can't be made
                here.
            WorkerError: a worker ended before its work did.
        """
        launcher = self.strategy.launcher
        if function is None and not launcher.calls_in_place:
            raise LaunchError(
                f"{type(self.strategy).__name__} makes its processes with "
                f"{type(launcher).__name__}, which calls a function in each of them: use "
                "fabric.launch(train), where train(fabric) holds your loop."
            )
        if function is not None and not callable(function):
            raise LaunchError(
                f"fabric.launch({function!r}): expected a function, which gets this Fabric as its "
                "first argument."
            )
        return launcher.launch(self._run, function, args, kwargs)

    def _run(self, function: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
        """All ranks, in the process that was made."""
        if self.strategy.launcher.calls_in_place:
            self._set_up()
            if function is None:
                return None
            return function(self, *args, **kwargs)
        try:
            self._set_up()
            assert function is not None
            return unwrap(function(self, *args, **kwargs))
        except Exception as error:
            first = explain(error)
            if first is error:
                raise
            raise first from None
        finally:
            self.teardown()

    def join(self) -> None:
        """All ranks; idempotent. Select the device and join the process group, until `teardown`.

        All that needs it does so by itself, and takes care of the teardown too, for a loop that
        doesn't. A trainer, which knows where its stages begin and end, calls both.
        """
        if not self._is_set_up:
            environment, num_processes = self.strategy.cluster_environment, self.strategy.world_size
            if environment is not None and environment.world_size() < num_processes:
                launch = "fabric.launch(train)"
                if self.strategy.launcher.calls_in_place:
                    launch = "fabric.launch()"
                raise LaunchError(
                    f"{type(self.strategy).__name__} runs in {num_processes} processes, and they "
                    f"don't exist yet. Call {launch} first."
                )
            if self.strategy.world_size > 1:
                warn_of_late_ranks(self.watch)
            self.strategy.setup_environment()
            self._is_set_up = True
            if self.strategy.world_size > 1:
                begin(self.strategy, self.watch)

    def _set_up(self) -> None:
        """All ranks; idempotent. Join the group, and leave it at exit."""
        if self._is_set_up:
            return
        self.join()
        self.draw_alike()
        session = self.strategy.session
        atexit.register(session.tear_down_alone)
        # For a Fabric that is gone before the end; at the end, the teardown above does it.
        weakref.finalize(self, _let_go, session, os.getpid()).atexit = False

    def draw_alike(self) -> None:
        """All ranks, when they have joined. Draw what the main rank draws, also without a seed,
        until `draw_apart`.
        """
        self._draw_apart = draw_alike(self.strategy)

    def draw_apart(self) -> None:
        """All ranks, when a model is set up; idempotent. Draw from this rank's own generators from
        here on.
        """
        if self._draw_apart is not None:
            self._draw_apart()
            self._draw_apart = None

    def teardown(self) -> None:
        """All ranks; idempotent. Leave the process group and forget modules and optimizers. Happens
        at exit too.
        """
        atexit.unregister(self.strategy.session.tear_down_alone)
        if self._is_set_up:
            self._is_set_up = False
            self._draw_apart = None
            try:
                self.strategy.teardown()
            finally:
                if self.strategy.world_size > 1:
                    end()

    # talking to the others ------------------------------------------------------------------------

    def all_reduce(
        self, data: object, group: object = None, reduce_op: ReduceOp | object = "mean"
    ) -> Any:
        """All ranks. Combine tensors over ranks, also nested ones and plain numbers, which come
        back as tensors.

        Args:
            data: of the same structure and shapes on all ranks. Not changed.
            group: a process group; None for all ranks.
            reduce_op: `"mean"`, `"sum"`, `"min"`, `"max"`, `"product"`, or the backend's own.
        """
        return self._map_tensors(
            lambda tensor: self.strategy.reduce(tensor, group, reduce_op), data
        )

    def all_gather(self, data: object, group: object = None, sync_grads: bool = False) -> Any:
        """All ranks. Stack tensors of all ranks, also nested ones and plain numbers, which come
        back as tensors.

        Args:
            data: of the same structure and shapes on all ranks; tensors of shape (...).
            group: a process group; None for all ranks.
            sync_grads: let gradients flow back to the ranks that they belong to.

        Returns:
            The same structure; tensors of shape (world_size, ...), or (...) with one process.
        """
        return self._map_tensors(
            lambda tensor: self.strategy.all_gather(tensor, group, sync_grads), data
        )

    def broadcast(self, obj: object, src: int = 0) -> Any:
        """All ranks. A tensor, or any picklable object, of rank `src`."""
        self._set_up()
        return self.strategy.broadcast(obj, src)

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all are here."""
        self._set_up()
        self.strategy.barrier(name)

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """All ranks. A context that rank 0 goes through before the others, to download or prepare
        something once.

        Args:
            local: the first rank of each node goes first, where nodes share no storage.
        """
        self._set_up()
        goes_first = self.is_global_zero
        if local:
            goes_first = self.local_rank == 0
        if not goes_first:
            self.barrier("rank_zero_first")
        try:
            yield
        finally:
            # After an exception too, or the others would wait for ever.
            if goes_first:
                self.barrier("rank_zero_first")

    def seed_everything(
        self, seed: int = 0, workers: bool = True, *, per_rank: bool = False
    ) -> int:
        """All ranks. Seed Python's, NumPy's and torch's generators, from which the shuffling of
        data follows too.

        Args:
            seed: from 0 to 2**32 - 1; the same on all ranks.
            workers: known from other trainers. Loaders' workers follow from the seed in any case.
            per_rank: add the number of this rank's shard of the data, so that ranks draw other
                noise. Not while a model is being built.

        Returns:
            The seed of this rank.
        """
        seed = checked_seed(seed)
        if per_rank:
            seed = (seed + self.strategy.data_parallel_rank) % 2**32
        return seed_everything(seed)

    def _map_tensors(self, function: Callable[[Tensor], Tensor], data: object) -> object:
        self._set_up()

        def apply(leaf: object) -> object:
            if isinstance(leaf, int | float):
                leaf = torch.tensor(leaf, device=self.device)
            if isinstance(leaf, Tensor):
                return function(leaf.to(self.device))
            return leaf

        return map_leaves(apply, data)


def _let_go(session: Session, pid: int) -> None:
    """Release the strategy of a Fabric that is gone, and its models, instead of at the end of the
    interpreter.
    """
    # the copy of a process that was forked, where a library may have done that
    if os.getpid() != pid:
        return
    atexit.unregister(session.tear_down_alone)
    session.release_alone()
