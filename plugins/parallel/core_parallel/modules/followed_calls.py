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

_WORDS = frozenset({bool, str, type(None)})


class FollowedCalls:
    """All calls of a module are followed, unless the program compiles something: of that no
    operation is seen, so a followed call runs uncompiled. Then they are the first ones of each key,
    as torch's compiler makes a graph for each: shapes but for the number of samples, arguments that
    are a bool, a str or None, whether the module trains, and whether gradients are enabled.

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: set[Hashable] = set()

    def has(self, given: Any, *further: Hashable) -> bool:
        """Once a call. True if it is followed: on all ranks that are given the same.

        Args:
            given: its arguments.
            further: of the key.
        """
        if not compiles():
            return True
        leaves = tree_leaves(given)
        shapes = tuple(leaf.shape[1:] for leaf in leaves if isinstance(leaf, Tensor))
        words = tuple(leaf for leaf in leaves if type(leaf) in _WORDS)
        key = shapes, words, self._module.training, torch.is_grad_enabled(), further
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def compiles() -> bool:
    """True if something in this process was given to `torch.compile`."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends: dict[int, Any] = getattr(frames, "cached_backends", {})
    return any(one is not None for one in backends.values())


def is_without_values(module: nn.Module) -> bool:
    """True for a module of fake tensors, by which a run is planned."""
    return is_fake(next(module.parameters(), None))


def is_fake(value: object) -> bool:
    """True for a tensor without values."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(
        getattr(value, "_local_tensor", value), fakes.FakeTensor
    )
