"""Weights and the optimizer's state: averaged with peers, sent to those that join, and taken from
them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.optim.state_averager import (
    TrainingStateAverager,
    dump_optimizer_state,
    load_optimizer_state,
)

from core_hivemind.averaging.children import Child
from core_hivemind.errors import PeersError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


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


class State(Child, TrainingStateAverager, _Noting):  # type: ignore[misc]
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
        self.frozen = ""
        self.keeps_options = False
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


def state_prefix(run_id: str) -> str:
    """The name under which peers of a run find each other's state."""
    return f"{run_id}_state_averager"


def _mismatch(own: Sequence[Tensor], found: Sequence[Tensor]) -> PeersError | None:
    here = [tuple(one.shape) for one in own]
    there = [tuple(one.shape) for one in found]
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
