"""Each peer's own order of the data, and the addresses of the others."""

from __future__ import annotations

import os
import secrets
import warnings
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler, SequentialSampler

from core.data import ShardedSampler, mix_seed, sampler_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

PEERS_VARIABLE = "CORE_INITIAL_PEERS"


def addresses_in(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses of peers: given, or by the variable, or none."""
    if given is None:
        given = os.environ.get(PEERS_VARIABLE, "")
    return tuple(given.replace(",", " ").split()) if isinstance(given, str) else tuple(given)


def draw() -> int:
    """A stream that no other peer has."""
    return secrets.randbits(62) + 1


class PeerSamples:
    """A peer's own order of its data.

    Args:
        number: 0 is the order of one device.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._seeds: list[tuple[ShardedSampler, int]] = []

    def take(self, loader: Any) -> Any:
        """The loader of this peer: shuffled anew, or begun elsewhere in the user's order."""
        if self.number == 0:
            return loader
        sampler = sampler_of(loader)
        if sampler is None:
            warnings.warn(
                f"{type(loader).__name__} has no sampler that could give each peer an order of its "
                "own: peers may read the same samples at the same time. Let your data set draw by "
                "trainer.strategy.stream.",
                stacklevel=3,
            )
            return loader
        if type(sampler.order) is SequentialSampler:
            sampler.order = Rotated(sampler.order.data_source, self.number)
        self._seeds.append((sampler, mix_seed(sampler.seed, self.number)))
        self.restore()
        return loader

    def restore(self) -> None:
        """Draw from this peer's own seeds, whosever checkpoint was loaded."""
        for sampler, seed in self._seeds:
            sampler.seed = seed


class Rotated(Sampler[int]):
    """The samples in their order, beginning at a place that follows from a number."""

    def __init__(self, data: Sized, number: int) -> None:
        self.data = data
        self.number = number

    def __iter__(self) -> Iterator[int]:
        size = len(self)
        first = mix_seed(self.number) % max(1, size)
        return ((first + index) % size for index in range(size))

    def __len__(self) -> int:
        return len(self.data)
