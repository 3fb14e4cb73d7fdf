"""Layers with sparse gradients, refused by strategies that know dense ones only."""

from __future__ import annotations

from torch import nn

from core.contract import ModuleError, Strategy


def refuse_sparse_layers(strategy: Strategy, module: nn.Module) -> None:
    """Refuse a module of which a layer gives sparse gradients. For `setup_module`, before anything is moved.

    Raises:
        ModuleError: the layer, and what to write.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ModuleError(
                f"{name!r} of {type(module).__name__} gives sparse gradients, and {type(strategy).__name__} takes "
                "dense ones. Build it with sparse=False."
            )
