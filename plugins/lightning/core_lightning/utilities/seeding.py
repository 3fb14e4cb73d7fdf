"""Seeds, with Lightning's arguments."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from core import seed_everything as seed_all

_VARIABLE = "PL_GLOBAL_SEED"


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, NumPy's and torch's generators, and return the seed; see
    `core.seed_everything`.

    Args:
        seed: None is that of the variable `PL_GLOBAL_SEED`, or else 0.
        workers: loaders' workers follow from the seed in any case.
        verbose: taken for Lightning's sake; nothing is printed.
    """
    import numpy  # noqa: F401  (core seeds it where it is used; a program may import it later)

    if seed is None:
        seed = int(os.environ.get(_VARIABLE, 0))
    number = seed_all(int(seed), workers)
    os.environ[_VARIABLE] = str(number)
    return number


def reset_seed() -> None:
    """Seed all generators again as `seed_everything` did last; without that do nothing."""
    if _VARIABLE in os.environ:
        seed_everything()


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """A context after which the generators are as they were before."""
    import numpy
    import torch

    states = random.getstate(), numpy.random.get_state()
    devices: list[int] | None = []
    if include_cuda:
        devices = None
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])
