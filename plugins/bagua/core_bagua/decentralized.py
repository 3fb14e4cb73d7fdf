"""Every rank has weights of its own, and averages them with some others in each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from core import ConfigurationError
from core_bagua.algorithm import Algorithm
from core_bagua.compression import compress, decompress
from core_bagua.messages import exchange, flat, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_SELECTIONS = ("all", "shift_one")


@dataclass(kw_only=True)
class PeerAveraging(Algorithm):
    """The base of both: counts steps, and says in which of them ranks talk.

    Attributes:
        communication_interval: number of steps from one exchange to the next.
        num_steps: so far.
    """

    communication_interval: int = 1
    num_steps: int = field(default=0, init=False)

    def problem(self, num_processes: int) -> ConfigurationError | None:
        """An interval that is no number of steps."""
        if type(self.communication_interval) is int and self.communication_interval >= 1:
            return None
        return ConfigurationError(
            f"communication_interval={self.communication_interval!r}: expected a number of steps "
            "from 1."
        )

    @property
    def talks(self) -> bool:
        """True in a step in which ranks exchange weights."""
        return self.num_steps % self.communication_interval == 0

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Count. Steps are counted, not updates: an overflow may skip one on a single
        rank.
        """
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of steps; all else has become one model before a checkpoint."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self.num_steps = state["num_steps"]


@dataclass(kw_only=True)
class Decentralized(PeerAveraging):
    """Decentralized, full precision: weights become the mean of peers', then each rank steps by its
    own gradient.

    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
    Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017.

    Attributes:
        peer_selection_mode: `"all"`, everybody; `"shift_one"`, one rank of the other half, the next
            one each time.
    """

    peer_selection_mode: Literal["all", "shift_one"] = "all"

    def problem(self, num_processes: int) -> ConfigurationError | None:
        """A mode that isn't known, or an odd number of processes that are to be paired."""
        if self.peer_selection_mode not in _SELECTIONS:
            known = ", ".join(map(repr, _SELECTIONS))
            return ConfigurationError(
                f"peer_selection_mode={self.peer_selection_mode!r}: expected one of {known}."
            )
        if self.peer_selection_mode == "shift_one" and num_processes % 2:
            return ConfigurationError(
                f"peer_selection_mode='shift_one' pairs ranks, and there are {num_processes}. Use "
                "an even number of devices, or peer_selection_mode='all'."
            )
        return super().problem(num_processes)

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Average with peers."""
        if self.talks:
            exchange(weights, self._mean, flatten=self.flatten)

    def _mean(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        if self.peer_selection_mode == "all":
            dist.all_reduce(message)
            return message / dist.get_world_size()
        peer = peer_of(
            dist.get_rank(), dist.get_world_size(), self.num_steps // self.communication_interval
        )
        return (message + _swapped(message, [peer])[0]) / 2


def peer_of(rank: int, size: int, round_number: int) -> int:
    """The rank of the other half with which a rank is paired in a round, as in Bagua's
    `shift_one`.
    """
    half = size // 2
    return (
        (rank + round_number) % half + half if rank < half else (rank - half - round_number) % half
    )


@dataclass(kw_only=True)
class LowPrecisionDecentralized(PeerAveraging):
    """Decentralized, low precision: on a ring, each rank sends its change to its neighbors in eight
    bits.

    Koloskova et al., "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
    Communication", ICML 2019 (CHOCO-SGD): each rank knows what its neighbors know of it, so that
    what a message leaves out is part of the next difference, and the mean of all weights loses
    nothing. Bagua's own is the difference compression of Tang et al., "Communication Compression
    for Decentralized Training", NeurIPS 2018, in which it is lost.

    Attributes:
        copies: what neighbors know of this rank's weights, and this rank of theirs, by name; empty
            where all have the same weights.
    """

    copies: dict[str, list[Tensor]] = field(default_factory=dict, init=False)

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Begin with copies of weights that all have."""
        for name, weight in weights.items():
            if name not in self.copies:
                self.copies[name] = [weight.detach().clone() for _ in range(1 + len(_neighbors()))]

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Send to the neighbors, and move a third of the way to each."""
        if self.talks:
            exchange(weights, self._moved, flatten=self.flatten)
        super().after_step(weights)

    def _moved(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        neighbors = _neighbors()
        own, *theirs = [
            flat({name: self.copies[name][place] for name in parts})
            for place in range(1 + len(neighbors))
        ]
        packed = compress((message - own)[None])
        own += decompress(packed, message.dtype)[0]
        for copy, news in zip(theirs, _swapped(packed, neighbors), strict=True):
            copy += decompress(news, message.dtype)[0]
        for place, copy in enumerate([own, *theirs]):
            for name, part in zip(parts, split(parts, copy), strict=True):
                self.copies[name][place] = part
        weight = 2 / 3 / len(neighbors)
        return message + weight * sum(copy - own for copy in theirs)

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks. Forget copies: all weights are going to be the same."""
        self.copies = {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting, with what was loaded."""
        super().load_state_dict(state)
        self.copies = {}


def _neighbors() -> list[int]:
    """The ranks on both sides; of two ranks, the other."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return list(dict.fromkeys([(rank - 1) % size, (rank + 1) % size]))


def _swapped(message: Tensor, peers: list[int]) -> list[Tensor]:
    """Send a message to peers, and return theirs, in the same order."""
    received = [torch.empty_like(message) for _ in peers]
    sends = [dist.P2POp(dist.isend, message, peer) for peer in peers]
    receives = [
        dist.P2POp(dist.irecv, buffer, peer) for buffer, peer in zip(received, peers, strict=True)
    ]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()
    return received
