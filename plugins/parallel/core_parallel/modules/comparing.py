"""Values in place of constants, with which a module is compared with itself."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_constants(module: nn.Module) -> Iterator[None]:
    """A context with values in the place of parameters that are the same everywhere, such as gates
    that begin at 0.

    Ranks that have the same parameter get the same ones. Graphs that were made before stay valid.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    for name, parameter in module.named_parameters():
        # whose changes autograd doesn't count
        own: Tensor = getattr(parameter, "_local_tensor", parameter).data
        if (
            own.is_meta
            or not own.numel()
            or not own.is_floating_point()
            or bool((own != own.flatten()[0]).any())
        ):
            continue
        draws = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        kept.append((own, own.clone()))
        own.add_(torch.randn(own.shape, generator=draws).to(own) / 8)
    try:
        yield
    finally:
        for own, before in kept:
            own.copy_(before)
