"""Sparse gradients, as of `nn.Embedding(..., sparse=True)`, beside dense ones."""

from __future__ import annotations

import warnings

from torch import nn


def warn_of_mixture(module: nn.Module, backend: str) -> None:
    """Warn once a module if gloo averages both kinds of gradients: torch has been seen to get them wrong together."""
    tables = {
        name: part.weight
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad
    }
    sparse = set(tables.values())
    has_dense = any(own.requires_grad and own not in sparse for own in module.parameters())
    if "gloo" in backend and sparse and has_dense:
        warnings.warn(
            f"{', '.join(map(repr, tables))} of {type(module).__name__} gives sparse gradients, and other layers give "
            "dense ones. DDP over gloo has been seen to average the two together wrongly. Compare a few steps with "
            "devices=1, or make the layer with sparse=False.",
            UserWarning,
            stacklevel=2,
        )
