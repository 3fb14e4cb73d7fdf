"""This process as a peer of a run: from its first address to its last goodbye."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core_hivemind import library, processes
from core_hivemind.errors import PeersError
from core_hivemind.options import COMPRESSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core_hivemind.options import SwarmOptions

_TIMEOUT_S = 60


class Swarm:
    """The peers of one run as this one sees them. `leave` ends what `__init__` has started.

    Attributes:
        addresses: by which others reach this peer: their `initial_peers`. None in client mode.
        joint_steps: steps that were made with others.
        lone_steps: steps that were made without.
        missed: what was averaged with less than all peers in the last call of `step`, as text;
            empty if nothing.
    """

    def __init__(
        self,
        options: SwarmOptions,
        optimizer: Optimizer,
        module: nn.Module,
        *,
        keeps_rates: bool = False,
    ) -> None:
        """Start the node, and what averages.

        Args:
            options: what the swarm is to be.
            optimizer: the user's own.
            module: the user's own, whose buffers of floating point are averaged too.
            keeps_rates: learning rates are our own schedulers', whatever a peer's state says.

        Raises:
            PeersError: none of the initial peers can be reached.
            ConfigurationError: hivemind refuses an option.
        """
        library.load()
        self.options = options
        self._optimizer = optimizer
        self.joint_steps = self.lone_steps = 0
        self.missed = ""
        self.is_joined = False
        try:
            self.dht = self._start_node()
            buffers = [one for one in module.buffers() if one.is_floating_point()]
            self._hivemind = self._start_averaging(optimizer, buffers)
            averagers = (self._hivemind.state_averager, self._hivemind.grad_averager)
            self._watch = processes.ChildExits((self._node, *averagers))
            self._hivemind.state_averager.keeps_options = keeps_rates
            trained = {one for group in optimizer.param_groups for one in group["params"]}
            self._frozen = [one for one in module.parameters() if one not in trained]
            self.addresses = (
                [] if options.client_mode else [str(one) for one in self.dht.get_visible_maddrs()]
            )
            _before_threads_are_awaited(self.leave)
        except BaseException:
            self.leave()
            raise

    def _start_node(self) -> Any:
        from core_hivemind.averaging import Node

        options = self.options
        try:
            self._node = Node(
                initial_peers=list(options.initial_peers) or None,
                host_maddrs=list(options.host_maddrs),
                start=False,
                **{
                    "startup_timeout": _TIMEOUT_S,
                    "client_mode": options.client_mode,
                    **options.dht_options,
                },
            )
            self._node.run_in_background(await_ready=True, timeout=2 * _TIMEOUT_S)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigurationError(f"hivemind's node refuses an option: {error}") from error
        except Exception as error:
            peers = ", ".join(options.initial_peers) or "none"
            raise PeersError(
                f"This peer can't take part: {type(error).__name__}: {str(error)[:400]}. Its "
                f"initial_peers: {peers}. One of them has to run, and to be reachable from here. A "
                "running peer prints its addresses, and trainer.strategy.addresses has them."
            ) from error
        return self._node

    def _start_averaging(self, optimizer: Optimizer, buffers: Sequence[Tensor]) -> Any:
        from core_hivemind.averaging import Gradients, SwarmOptimizer

        options = self.options
        averaging = options.averaging
        averager = dict(averaging.averager_options)
        return SwarmOptimizer(
            dht=self.dht,
            run_id=options.run_id,
            target_batch_size=options.target_batch_size,
            optimizer=optimizer,
            client_mode=options.client_mode,  # hivemind takes the node's, unless this is None
            matchmaking_time=averaging.matchmaking_time,
            averaging_timeout=averaging.averaging_timeout,
            load_state_timeout=options.peers_timeout_s,
            reuse_grad_buffers=averaging.reuse_grad_buffers,
            delay_state_averaging=averaging.delay_state_averaging,
            average_state_every=averaging.average_state_every,
            grad_compression=_compression(averaging.compression),
            state_averaging_compression=_compression(averaging.state_compression),
            grad_averager_factory=partial(Gradients, allow_state_sharing=False, **averager),
            extra_tensors=tuple(buffers),
            averager_opts=averager,
            tracker_opts=dict(averaging.tracker_options),
            verbose=options.verbose,
        )

    # steps ----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Steps that the run has made, as far as this peer knows: hivemind's epoch."""
        return int(self._hivemind.local_epoch)

    @property
    def num_peers(self) -> int:
        """Number of peers that have lately reported samples, this one included."""
        return max(1, int(self._hivemind.tracker.global_progress.num_peers))

    @property
    def is_lonely(self) -> bool:
        """True if this peer has made steps, and none of them with another."""
        return self.lone_steps > 0 and not self.joint_steps

    def join(self, epoch: int) -> None:
        """Meet the others, and take the newest state; idempotent.

        Args:
            epoch: steps that our own weights have seen.

        Raises:
            PeersError: the others don't come, or train something else.
        """
        from core_hivemind.meeting import Meeting

        if self.is_joined:
            return
        self.is_joined = True
        state = self._hivemind.state_averager
        state.local_epoch = state.done_epoch = epoch
        state.frozen = digest(self._frozen)
        self._meeting = Meeting(self.dht, self.options)
        self._meeting.await_peers()
        self._meeting.await_state(self._load)
        if not self._hivemind.client_mode:
            state.allow_state_sharing = True
            state.state_sharing_priority = self.epoch
        with self._hivemind.tracker.pause_updates():
            self._hivemind.tracker.update_epoch(self.epoch)
        self._meeting.await_start(self._hivemind.tracker.report_and_count)

    def _load(self) -> bool:
        state = self._hivemind.state_averager
        loaded = state.load_state_from_peers(timeout=_TIMEOUT_S)
        self._raise_refusal()
        return bool(loaded)

    def step(self, num_samples: int) -> None:
        """Add the gradients of so many samples, and make the run's step if it is due."""
        self._hivemind.group_size = 0
        wanted = self.num_peers if self.joint_steps else max(self.num_peers, self.options.min_peers)
        try:
            self._hivemind.step(batch_size=num_samples)
        except Exception:
            self._check_alive()  # says more
            raise
        self._raise_refusal()
        self._check_alive()
        if size := self._hivemind.group_size:
            self.joint_steps += size > 1
            self.lone_steps += size == 1
        sizes = {
            "gradients": size or None,
            "weights": self._hivemind.state_averager.take_group_size(),
        }
        short = [
            f"{name} with {max(1, found)}"
            for name, found in sizes.items()
            if found is not None and found < wanted
        ]
        self.missed = f"{' and '.join(short)} of {wanted} peers" if short else ""

    def await_averaging(self) -> None:
        """Wait for weights that are averaged in the background, and take them."""
        self._hivemind.state_averager.step(wait_for_delayed_updates=True)

    def _check_alive(self) -> None:
        """Refuse to go on alone where what makes this a peer has ended.

        Raises:
            PeersError: with what has.
        """
        optimizer = self._hivemind
        parts = (self._node, optimizer.state_averager, optimizer.grad_averager, optimizer.tracker)
        if ended := [type(part).__name__ for part in parts if not part.is_alive()]:
            raise PeersError(
                f"A part of this peer has ended in the middle of run {self.options.run_id!r}: "
                f"{', '.join(ended)} of core_hivemind.averaging. What it has said stands above. "
                "The other peers go on; start this one again, and it takes their state."
            )

    def _raise_refusal(self) -> None:
        if (refusal := self._hivemind.state_averager.refusal) is not None:
            raise refusal

    # end ------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the swarm, and end all processes and threads; idempotent."""
        optimizer = self.__dict__.pop("_hivemind", None)
        node = self.__dict__.pop("_node", None)
        watch = self.__dict__.pop("_watch", None)
        if optimizer is not None:
            # multiprocessing may have ended the node already. The others learn of it by and by, if
            # not from us.
            with contextlib.suppress(Exception):
                if node is not None and node.is_alive():
                    self._meeting.leave()
            with contextlib.suppress(Exception):
                optimizer.shutdown()
        if watch is not None:
            watch.end()
        if node is not None:
            node.shutdown()
        if optimizer is not None:
            optimizer.end()
        if watch is not None:
            watch.join()
        processes.end_future_thread()


def _before_threads_are_awaited(leave: Callable[[], None]) -> None:
    """Call it when the interpreter ends, if it hasn't been called before, and the swarm still
    lives.

    Functions of `atexit` come after Python has waited for threads, hivemind's too, which would wait
    for ever.
    """
    method = weakref.WeakMethod(leave)

    def call() -> None:
        if (living := method()) is not None:
            living()

    threading._register_atexit(call)  # type: ignore[attr-defined]  # concurrent.futures uses it, and nothing else does


def digest(tensors: Sequence[Tensor]) -> str:
    """A digest of values, by which peers see that theirs are the same."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return hashed.hexdigest()


def _compression(name: str) -> Any:
    return getattr(library.load().compression, COMPRESSIONS[name])()
