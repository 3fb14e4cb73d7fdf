"""Random numbers where each rank of a tensor group has a part of the values: its own, as in
Megatron.

With the same ones on all, heads of one rank would be dropped together with those of the others.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

_open: set[OwnDraws] = set()


def is_open() -> bool:
    """True between `begin` and `end` of any."""
    return bool(_open)


class OwnDraws:
    """Random numbers of one rank, between a call of `begin` and one of `end`; what all share goes
    on afterwards.

    They follow from what all share, so that a forward that is computed again in backward draws the
    same ones. Where nothing was drawn, what all share is as it would be on one device.

    Args:
        rank: in the group.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._device = torch.device("cpu")
        self._generator: Any = torch
        self._before: Tensor | None = None
        self._seeded = torch.empty(0)

    def begin(self, module: nn.Module, device: torch.device) -> None:
        """Draw own numbers from here on, if the module trains and isn't compiled."""
        if self._before is not None or not module.training or torch.compiler.is_compiling():
            return
        self._device, self._generator = device, torch
        # torch.manual_seed takes a traceback, which is 1 ms
        seed: Any = torch.default_generator.manual_seed
        if device.type != "cpu":
            self._generator = torch.get_device_module(device)
            seed = self._generator.manual_seed
        self._before = before = self._generator.get_rng_state()
        # Of 32 bits: the CPU's generator takes no more.
        seed(zlib.crc32(before.numpy().tobytes(), self._rank + 1))
        self._seeded = self._generator.get_rng_state()
        _open.add(self)

    def end(self, *_: Any) -> None:
        """Go on with what all share; idempotent."""
        if self._before is None:
            return
        has_drawn = not torch.equal(self._generator.get_rng_state(), self._seeded)
        self._generator.set_rng_state(self._before)
        self._before = None
        _open.discard(self)
        if has_drawn:
            torch.rand((), device=self._device)  # so that the next ones are others
