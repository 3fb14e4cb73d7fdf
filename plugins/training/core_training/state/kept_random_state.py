"""Work from which training must not differ: random states are afterwards as they were."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.checkpoint import collect_random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Strategy


@contextmanager
def random_state_kept(strategy: Strategy) -> Iterator[None]:
    """Each rank. A context that leaves all random states as they were."""
    place = strategy.accelerator, strategy.root_device
    state = collect_random_state(*place)
    try:
        yield
    finally:
        restore_random_state(state, *place)
