"""Random numbers of stages, apart from those of the user's step, which all ranks of a pipeline draw
alike.
"""

from __future__ import annotations

import random
import sys
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from core.checkpoint import collect_random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import Accelerator


class Seeds:
    """The random numbers of one pass: the same ones for a stage and a microbatch, whatever the
    schedule.

    Args:
        base: of the pass.
        stream: number of this rank among those of its stage.
        device: the rank's own.
    """

    def __init__(self, base: int, stream: int, device: torch.device) -> None:
        self._base, self._stream = base, stream
        self._seed = torch.manual_seed
        if device.type == "cpu":
            # torch.manual_seed takes a traceback for each kind of device that isn't in use, which
            # is 1 ms.
            self._seed = torch.default_generator.manual_seed

    def begin(self, stage: int, microbatch: int) -> None:
        """Begin with the numbers of a stage and a microbatch."""
        self._seed(self._number(stage, microbatch))

    def begin_step(self, num_stages: int, microbatch: int) -> None:
        """Begin with the numbers of the user's step for a microbatch, which two ranks run alike."""
        number = self._number(num_stages, microbatch)
        self._seed(number)
        random.seed(number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(number % (1 << 32))

    def _number(self, stage: int, microbatch: int) -> int:
        # The CPU's generator takes the lowest 32 bits alone.
        own = zlib.crc32(f"{self._base} {stage} {microbatch} {self._stream}".encode())
        return (self._base >> 32 << 32) + own


class Draws:
    """The random state of one rank: shared by the ranks of a pipeline, except where a stage
    computes.

    Args:
        accelerator: of the device.
        device: the rank's own.
        stream: number of this rank among those of its stage.
    """

    def __init__(self, accelerator: Accelerator, device: torch.device, stream: int) -> None:
        self._accelerator, self._device, self._stream = accelerator, device, stream

    @contextmanager
    def of_stages(self, base: int | None = None) -> Iterator[Seeds]:
        """All ranks of a pipeline. A context in which a stage seeds itself; the shared state goes
        on afterwards.

        Args:
            base: of a pass that is no part of the training, and draws nothing. None draws one.
        """
        if base is None:
            # Of Python's generator, which checkpoints have too: so torch's draws in a step are
            # those of one device.
            base = random.getrandbits(62)
        before = collect_random_state(self._accelerator, self._device)
        try:
            yield Seeds(base, self._stream, self._device)
        finally:
            restore_random_state(before, self._accelerator, self._device)
