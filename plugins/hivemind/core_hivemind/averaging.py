"""hivemind's classes, where their behavior isn't what a training run can live with. Imports
hivemind.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.optim.state_averager import (
    TrainingStateAverager,
    dump_optimizer_state,
    load_optimizer_state,
)
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from core_hivemind.errors import PeersError
from core_hivemind.processes import between_answers, ends_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_START_TIMEOUT_S = 60
_ANSWER_TIMEOUT_S = 3
_PING_TIMEOUT_S = 5
_FORK = multiprocessing.get_context("fork")


class Node(hivemind.DHT):  # type: ignore[misc]  # hivemind is untyped
    """The process that knows other peers, with its p2pd: it leaves neither behind."""

    def run(self) -> None:
        """In the child. Serve until the end."""
        with ends_with_parent():
            super().run()

    def shutdown(self) -> None:
        """End it by the signal that it would get if this process had gone: there is nothing that it
        has to say.
        """
        if self.is_alive():
            # what it was sent before has arrived when it answers
            with contextlib.suppress(Exception):
                self.run_coroutine(self._get_client_mode, return_future=True).result(
                    _ANSWER_TIMEOUT_S
                )
            with between_answers():
                self.terminate()
                self.join(self.shutdown_timeout)

    def __del__(self) -> None:
        """Nothing: it ends in `Swarm.leave`."""


class _Child:
    """An averager's process. It ends with its parent, leaves no socket, and the parent's Ctrl-C as
    it is.

    It is forked, as the node is, whatever start method the program has set: it can't be pickled.
    """

    _start_method = "fork"
    _Popen = staticmethod(_FORK.Process._Popen)

    def run_in_background(self, await_ready: bool = True, timeout: float | None = None) -> None:
        """Start the child. hivemind would have this process ignore Ctrl-C from here on."""
        self.start()  # type: ignore[attr-defined]
        self.wait_until_ready(_START_TIMEOUT_S if timeout is None else timeout)  # type: ignore[attr-defined]

    def run(self) -> None:
        """In the child. Serve until the end."""
        with ends_with_parent():
            super().run()  # type: ignore[misc]

    def shutdown(self) -> None:
        """Nothing: hivemind's optimizer calls it while the node may still hear of it. `end`
        follows.
        """

    def end(self) -> None:
        """End the child, by the signal that it would get if this process had gone, and the threads
        beside it.
        """
        with contextlib.suppress(Exception):  # what it was sent before has arrived when it answers
            self.get_group_bits(wait=False).result(_ANSWER_TIMEOUT_S)  # type: ignore[attr-defined]
        self._inner_pipe.send(("_SHUTDOWN", None))  # type: ignore[attr-defined]  # the thread that hands out the state
        with between_answers():
            self.terminate()  # type: ignore[attr-defined]
            self.join(self.shutdown_timeout)  # type: ignore[attr-defined]

    def __del__(self) -> None:
        """Nothing: what is left of it ends in `Swarm.leave`."""


class Gradients(_Child, GradientAverager):  # type: ignore[misc]
    """Gradients of a step: summed here, averaged with peers."""

    def load_accumulators_into_averager_(self) -> None:
        """Average over samples. hivemind averages over batches, and counts a short one as if it
        were whole.
        """
        super().load_accumulators_into_averager_()
        if self.local_times_accumulated and not self.reuse_grad_buffers:
            even = self.local_times_accumulated * self._anchor_batch_size
            if even != self.local_samples_accumulated:
                with torch.no_grad(), self.get_tensors() as gradients:
                    for gradient in gradients:
                        gradient.mul_(even / self.local_samples_accumulated)

    def load_state_from_peers(self, **options: Any) -> None:
        """Nothing: gradients of a step that is over are of no use."""


class _Noting(DecentralizedAverager):  # type: ignore[misc]
    """Keeps the last round, whose result hivemind only logs."""

    last_round: Any = None

    def step(self, **options: Any) -> Any:
        self.last_round = super().step(**options)
        return self.last_round

    def take_group_size(self) -> int | None:
        """Peers of the round that is over, 0 if it failed; None if there was none since the last
        call, or it is on.
        """
        control = self.last_round
        if control is None or not control.triggered or not control.done():
            return None
        self.last_round = None
        return (
            0 if control.cancelled() or control.exception() is not None else len(control.result())
        )


class State(_Child, TrainingStateAverager, _Noting):  # type: ignore[misc]
    """Weights and the optimizer's state: averaged with peers, and sent to those that join.

    Attributes:
        done_epoch: the step that weights and moments are of.
        refusal: why a peer's state was refused, if it was.
        frozen: digest of the weights that aren't trained, which peers must have in common.
        keeps_options: True if learning rates are our own schedulers', whatever a peer's state says.
    """

    def __init__(self, **options: Any) -> None:
        self.local_epoch = self.done_epoch = 0
        self.refusal: PeersError | None = None
        self.frozen, self.keeps_options = "", False
        # hivemind would make a step with zero gradients: weights would decay, and Adam count a step
        # that wasn't.
        super().__init__(**options, initialize_optimizer=False)

    def _make_host_tensor(self, source_tensor: Tensor, force_copy: bool = False) -> Tensor:
        """A copy for averaging: of float32, or of float64 where hivemind would round that."""
        dtype = torch.promote_types(source_tensor.dtype, torch.float32)
        copy = source_tensor.detach().to(device="cpu", dtype=dtype, copy=True)
        copy.share_memory_()
        return copy.requires_grad_(source_tensor.requires_grad)

    def _update_scheduler(self) -> None:
        """Called when a step is done, before others may read the state."""
        super()._update_scheduler()
        self.done_epoch = self.local_epoch

    def get_current_state(self) -> tuple[Any, Sequence[Tensor], Sequence[Any]]:
        """The state for a peer that joins: of a whole step, not of one that is half done."""
        with self.lock_optimizer:
            metadata, tensors, infos = super().get_current_state()
            epoch = self.done_epoch
        return (
            {**metadata, "epoch": epoch, "frozen": self.frozen},
            [tensor.clone() for tensor in tensors],
            infos,
        )

    def load_state_from_peers(self, **options: Any) -> bool:
        """Load the newest state of the peers.

        Returns:
            False if there is none that is as new as our own.
        """
        if not self.is_alive():
            return False  # hivemind would try again for ever, and `Swarm` says that this has ended
        loaded = super(TrainingStateAverager, self).load_state_from_peers(**options)
        if loaded is None:
            return False
        metadata, tensors = loaded
        if not isinstance(metadata.get("epoch"), int) or metadata["epoch"] < self.local_epoch:
            return False
        own = [*(one for group in self._groups for one in group["params"]), *self.extra_tensors]
        self.refusal = _mismatch(own, tensors[: len(own)]) or _frozen_mismatch(
            self.frozen, metadata.get("frozen")
        )
        if self.refusal is not None:
            return False
        with torch.no_grad(), self.lock_optimizer:
            before = [
                {name: value for name, value in group.items() if name != "params"}
                for group in self._groups
            ]
            _load_optimizer(self.optimizer, metadata["optimizer_metadata"], tensors[len(own) :])
            for group, ours in zip(
                self._groups, before if self.keeps_options else [], strict=False
            ):
                group.update(ours)
            for tensor, value in zip(own, tensors, strict=False):
                tensor.copy_(value)
            self.local_epoch = self.done_epoch = metadata["epoch"]
        self._load_local_tensors_into_averager_()
        return True

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups  # type: ignore[no-any-return]


class SwarmProgress(ProgressTracker):  # type: ignore[misc]
    """The samples that all peers have seen for the step that is on."""

    _entries: Any = None
    _gone: dict[bytes, float] = {}  # noqa: RUF012  # replaced, never changed; hivemind's __init__ reads it already

    def forget_gone(self) -> None:
        """While updates pause. Leave out peers that don't answer, until they report again.

        Each round of averaging would wait for them, until what they have reported expires.
        """
        others = {
            peer: when
            for peer, when in _reachable(self._entries)
            if peer != self.local_progress.peer_id
        }
        asked = self.dht.run_coroutine(partial(_answering, peers=list(others)), return_future=True)
        try:
            answering = asked.result(_PING_TIMEOUT_S)
        except Exception:  # nothing is known of them
            return
        if gone := {peer: when for peer, when in others.items() if peer not in answering}:
            self._gone = self._gone | gone
            self.global_progress = self._parse_swarm_progress_data(self._entries)

    def _parse_swarm_progress_data(self, metadata: Any) -> Any:
        """Count our own samples as they are now. What peers have received may be older, and a step
        be missed.
        """
        self._entries = metadata
        if isinstance(metadata, dict):
            metadata = {
                key: value
                for key, value in metadata.items()
                if _time_of(value) > self._gone.get(_peer_of(value), -1.0)
            }
            own = self.local_progress
            entries = {
                key: value for key, value in metadata.items() if _peer_of(value) != own.peer_id
            }
            mine = ValueWithExpiration(own.dict(), get_dht_time() + self.metadata_expiration)
            metadata = {**entries, self._local_public_key: mine}
        return super()._parse_swarm_progress_data(metadata)

    def report_and_count(self) -> int:
        """Report to the others that this peer begins, before its first batch.

        Returns:
            Number of peers that have begun, this one included.
        """
        self._publish(self.local_progress.dict()).result()
        with self.pause_updates():
            found = self.dht.get(self.training_progress_key, latest=True)
            self.global_progress = self._parse_swarm_progress_data(found and found.value)
            return int(self.global_progress.num_peers)

    def _publish(self, value: Any) -> Any:
        until, key = get_dht_time() + self.metadata_expiration, self._local_public_key
        return self.dht.store(
            self.training_progress_key,
            subkey=key,
            value=value,
            expiration_time=until,
            return_future=True,
        )

    @property
    def ready_to_update_epoch(self) -> bool:
        """True if the step is due. hivemind goes by an estimate, which is of no use to a peer that
        is alone.
        """
        progress = self.global_progress
        if progress.num_peers <= 1 and progress.epoch <= self.local_progress.epoch:
            return bool(self.local_progress.samples_accumulated >= self.target_batch_size)
        return bool(super().ready_to_update_epoch)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread, and take our samples back. hivemind wouldn't wait until that has
        arrived.
        """
        self.shutdown_triggered.set()
        self.should_report_progress.set()
        self.global_state_updated.set()
        self.join(timeout)
        self._publish(None).result(timeout)

    def __del__(self) -> None:
        """Nothing: it ends in `Swarm.leave`."""

    def run(self) -> None:
        """The thread. Leave no thread of its own behind."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(
                asyncio.gather(self._progress_reporter(), self._progress_fetcher())
            )
            rest = asyncio.all_tasks(loop)
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            self.shutdown_complete.set()
            loop.close()


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
        self._is_loaded, self.group_size = False, 1
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


def state_prefix(run_id: str) -> str:
    """The name under which peers of a run find each other's state."""
    return f"{run_id}_state_averager"


def _peer_of(entry: Any) -> bytes:
    return bytes(_reported(entry).get("peer_id", b""))


def _time_of(entry: Any) -> float:
    return float(_reported(entry).get("time", 0.0))


def _reported(entry: Any) -> dict[str, Any]:
    value = getattr(entry, "value", None)
    return value if isinstance(value, dict) else {}


def _reachable(entries: Any) -> Iterator[tuple[bytes, float]]:
    """Peers that can be asked whether they are here, and when they last reported."""
    if isinstance(entries, dict):
        for entry in entries.values():
            if (peer := _peer_of(entry)) and not _reported(entry).get("client_mode"):
                yield peer, _time_of(entry)


async def _answering(dht: Any, node: Any, *, peers: Sequence[bytes]) -> list[bytes]:
    """In the node's process. Those of the peers that answer."""
    answers = await asyncio.gather(*(node.protocol.call_ping(PeerID(peer)) for peer in peers))
    return [peer for peer, answer in zip(peers, answers, strict=True) if answer is not None]


def _mismatch(own: Sequence[Tensor], found: Sequence[Tensor]) -> PeersError | None:
    here, there = [tuple(one.shape) for one in own], [tuple(one.shape) for one in found]
    if here == there:
        return None
    differing = next(
        (pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]),
        (len(here), len(there)),
    )
    return PeersError(
        f"A peer trains another model under this run_id: its weights have the shapes {there[:8]}, "
        f"ours {here[:8]}; the first that differ are {differing[1]} there and {differing[0]} here. "
        "Give each run a run_id of its own."
    )


def _frozen_mismatch(own: str, found: str | None) -> PeersError | None:
    if own == found:
        return None
    return PeersError(
        "A peer has other weights in the part of the model that isn't trained: those aren't "
        "exchanged. Load the same ones on all peers, or build them from the same seed."
    )


def _load_optimizer(
    optimizer: torch.optim.Optimizer, described: Any, tensors: Sequence[Tensor]
) -> None:
    """Load a peer's state. Entries that there are none of here are made first, by a step that
    changes no weight.
    """
    if len(described) != len(dump_optimizer_state(optimizer)[0]):
        with _untouched(optimizer):
            optimizer.step()
    load_optimizer_state(optimizer, described, tensors)


@contextlib.contextmanager
def _untouched(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A context with gradients of zeros, after which weights and gradients are what they were."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    before = [(one.detach().clone(), one.grad) for one in parameters]
    for one in parameters:
        one.grad = torch.zeros_like(one)
    try:
        yield
    finally:
        for one, (value, gradient) in zip(parameters, before, strict=True):
            one.copy_(value)
            one.grad = gradient
