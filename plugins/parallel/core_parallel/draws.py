"""Random numbers of stages, apart from those of the user's step, which all ranks of a pipeline draw alike."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from core.checkpoint import collect_random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core import Accelerator


class Draws:
    """The random state of one rank: shared by the ranks of a pipeline, except where a stage computes.

    Args:
        accelerator: of the device.
        device: the rank's own.
        stream: number of this rank among those of its stage.
    """

    def __init__(self, accelerator: Accelerator, device: torch.device, stream: int) -> None:
        self._accelerator, self._device, self._stream = accelerator, device, stream

    @contextmanager
    def of_stages(self) -> Iterator[Callable[[int, int], None]]:
        """All ranks of a pipeline. A context in which a stage seeds itself; the shared state goes on afterwards.

        Yields:
            `seed(stage, microbatch)`: the same numbers for these two, whatever the schedule.
        """
        # Of Python's generator, which checkpoints have too: so torch's draws in a step are those of one device.
        base = random.getrandbits(62)
        before = collect_random_state(self._accelerator, self._device)
        try:
            yield lambda stage, microbatch: self._seed(base, stage, microbatch)
        finally:
            restore_random_state(before, self._accelerator, self._device)

    def _seed(self, base: int, stage: int, microbatch: int) -> None:
        # Far apart for each: a generator's neighbouring seeds are independent.
        torch.manual_seed((base + (stage << 40) + (microbatch << 20) + self._stream) % (1 << 63))
