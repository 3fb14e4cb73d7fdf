"""Where samples come from: each is drawn from a generator of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.parts import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable


def features(width: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (
        torch.randn(width, generator=draw),
        torch.randint(0, 10, (), generator=draw),
    )


def images(size: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (
        torch.randn(3, size, size, generator=draw),
        torch.randint(0, 10, (), generator=draw),
    )


def text(length: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (torch.randint(0, WORDS, (length,), generator=draw),)


def pairs(length: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (text(length)(draw)[0], text(length)(draw)[0])


def clicks(draw: torch.Generator) -> tuple[Tensor, ...]:
    clicked = torch.randint(0, 2, (), generator=draw).float()
    return torch.randn(16, generator=draw), torch.randint(0, 8192, (8,), generator=draw), clicked
