"""A sampler, those that it wraps, and the generator that the user gave to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def sampler_chain(sampler: Any) -> Iterator[Any]:
    """A sampler, and those that it wraps, as a batch sampler does."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def find_generator(order: Any) -> torch.Generator | None:
    """The generator that the user gave to a sampler, or to one that it wraps."""
    generators = (getattr(part, "generator", None) for part in sampler_chain(order))
    return next((generator for generator in generators if isinstance(generator, torch.Generator)), None)
