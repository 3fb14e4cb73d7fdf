"""Seeds of loader workers, and random numbers for drawing samples, apart from those of the user's
model.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def mix_seed(*parts: int) -> int:
    """One seed of 64 bits out of several numbers, such as a seed and an epoch. Neighbors have
    nothing in common.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def seed_workers(
    generator: torch.Generator, own: torch.Generator | None, seed: int, rank: int, size: int
) -> None:
    """Seed the generator that gives a DataLoader's workers their seeds, otherwise on each of
    several ranks.

    The user's `own` generator draws what the loader would, so that the order after it is the
    loader's too.
    """
    if own is not None:
        generator.set_state(own.get_state())
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=own))
    if own is None or size > 1:
        generator.manual_seed(mix_seed(seed, rank))


class DrawingRng:
    """A context in which the process's global generators are this object's own.

    A sampler may draw from Python's, NumPy's or torch's generator. Those may stand anywhere on each
    rank, and belong to the model: inside this context all three start from `seed`, go on where the
    context was left last, and outside nothing has happened. Not reentrant.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: dict[str, Any] | None = None
        self._outside: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._outside = _states()
        if self._inside is None:
            seed_generators(self._seed)
        else:
            _restore(self._inside)

    def __exit__(self, *exception: object) -> None:
        self._inside = _states()
        _restore(self._outside)


def _states() -> dict[str, Any]:
    states = {"python": random.getstate(), "torch": torch.default_generator.get_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _restore(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.default_generator.set_state(states["torch"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's (where it is used) and torch's generator of the CPU."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)  # NumPy takes 32 bits
