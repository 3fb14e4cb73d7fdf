"""Which calls are followed from operation to operation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import nn


class FollowedCalls:
    """All calls of a module are followed, unless it is compiled: of what a graph computes no
    operation is seen, so a followed call runs uncompiled. Then they are the first ones of each key,
    as torch's compiler makes a graph for each: shapes but for the number of samples, arguments that
    are a bool, a str or None, and whether the module trains, or gradients are computed.

    Args:
        module: the user's.
        compiles: its methods are compiled; parts that are compiled are found.
    """

    def __init__(self, module: nn.Module, *, compiles: bool = False) -> None:
        self._module = module
        self._compiles: bool | None = compiles or None  # parts are compiled later
        self._seen: set[Hashable] = set()

    def has(self, given: Any) -> bool:
        """Once a call, with its arguments. True if it is followed: on all ranks that are given the
        same.
        """
        if self._compiles is None:
            self._compiles = has_compiled(self._module)
        if not self._compiles:
            return True
        leaves = tree_leaves(given)
        shapes = tuple(leaf.shape[1:] for leaf in leaves if isinstance(leaf, Tensor))
        words = tuple(leaf for leaf in leaves if isinstance(leaf, bool | str | None))
        key = shapes, words, self._module.training, torch.is_grad_enabled()
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def has_compiled(module: nn.Module) -> bool:
    """True if a module, or one in it, is compiled."""
    return any(
        part._compiled_call_impl is not None or hasattr(part.forward, "_torchdynamo_orig_callable")
        for part in module.modules()
    )


def is_without_values(module: nn.Module) -> bool:
    """True for a module of fake tensors, by which a run is planned."""
    return is_fake(next(module.parameters(), None))


def is_fake(value: object) -> bool:
    """True for a tensor without values."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(
        getattr(value, "_local_tensor", value), fakes.FakeTensor
    )
