"""One number for all random generators."""

from __future__ import annotations

import operator
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy

_WORDS = 624
"""Of the Mersenne Twister that Python and NumPy draw from."""
_MOST_BLOCKS = 4_000
"""Blocks of so many words up to which it is followed: a permutation of a million samples draws half
of them.
"""


def seed_everything(seed: int = 0, workers: bool = True) -> int:
    """Seed Python's, NumPy's (where it is used) and torch's generators, those of devices included.

    The shuffling of data follows from it, and on several ranks the loaders' workers too, each in
    its own way.

    Args:
        seed: from 0 to 2**32 - 1, which is what NumPy takes. The same on all ranks.
        workers: known from other trainers. Loaders' workers follow from the seed in any case.

    Returns:
        The seed.

    Raises:
        ConfigurationError: another number.
    """
    seed = checked_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.manual_seed(seed)
    return seed


def checked_seed(seed: Any) -> int:
    """The seed as an int, if it is one that all generators take.

    Raises:
        ConfigurationError: it isn't.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**32:
        raise ConfigurationError(
            f"seed_everything({seed!r}): expected an integer from 0 to 2**32 - 1."
        )
    return number


def draw_alike(strategy: Strategy) -> Callable[[], None]:
    """All ranks. Continue with the main rank's generators, so that what is drawn without a seed is
    the same on all.

    Returns:
        To be called once: continues with this rank's own ones again, those aside that were the
        same, or were seeded since.
    """
    if not strategy.session.has_peers:
        return lambda: None
    from core.checkpoint import collect_random_state, restore_random_state

    place = strategy.accelerator, strategy.root_device
    own = collect_random_state(*place)
    shared = strategy.broadcast(own)
    if strategy.global_rank == 0:
        return lambda: None
    restore_random_state(shared, *place)
    seed = torch.initial_seed()

    def draw_apart() -> None:
        now = collect_random_state(*place)
        if torch.initial_seed() == seed and not torch.equal(own["torch"], shared["torch"]):
            now |= {name: own[name] for name in ("torch", "device") if name in own}
        for name in ("python", "numpy"):
            keys = [_key(each[name]) for each in (own, shared, now) if name in each]
            if len(keys) == 3 and keys[0] != keys[1] and _has_only_drawn(keys[1], keys[2]):
                now[name] = own[name]
        restore_random_state(now, *place)

    return draw_apart


def _key(state: Any) -> tuple[int, ...]:
    """The words of Python's or NumPy's state, without the place in them."""
    if isinstance(state, dict):
        return tuple(state["state"]["key"].tolist())
    return tuple(state[1][:-1])


def _has_only_drawn(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """True if a Mersenne Twister came from one key to the other by drawing: it wasn't seeded."""
    twister = random.Random()
    twister.setstate((3, (*before, _WORDS), None))
    for _ in range(_MOST_BLOCKS):
        if twister.getstate()[1][:-1] == after:
            return True
        twister.getrandbits(32 * _WORDS)
    return False
