"""Contexts in which a module is compared with itself: values in place of constants, and no
dropout.
"""

from __future__ import annotations

import pickle
import random
import sys
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from core_parallel.modules import own_draws

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTENTION = functional.scaled_dot_product_attention  # under context= something else has its name
_DROPOUTS = frozenset(
    getattr(owner, name)
    for owner in (functional, torch)
    for name in (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    )
    if hasattr(owner, name)
)


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


class NoDropout(TorchFunctionMode):
    """A context in which dropout leaves all as it is, also while a module trains.

    Attributes:
        seen: the shapes of what was to be dropped, and whether each rank was to draw its own mask
            for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.Size, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result; of a dropout, what it was given."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            given = kwargs["input"] if "input" in kwargs else args[0]
            self.seen.append((given.shape, own_draws.is_open()))
            return given
        if func is _ATTENTION:
            if "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
            args = tuple(0.0 if index == 4 else one for index, one in enumerate(args))
        return func(*args, **kwargs)


def random_states(module: nn.Module) -> list[bytes]:
    """The states from which torch, Python and NumPy draw: after a call that draws nothing they are
    as before.
    """
    states = [torch.get_rng_state(), *_of_devices(module)]
    numpy = sys.modules.get("numpy")
    others = (random.getstate(), None if numpy is None else numpy.random.get_state(legacy=False))
    return [one.numpy().tobytes() for one in states] + [pickle.dumps(others)]


def _of_devices(module: nn.Module) -> list[Tensor]:
    kinds = {one.device for one in module.parameters() if one.device.type not in ("cpu", "meta")}
    return [torch.get_device_module(one).get_rng_state(one) for one in kinds]


def are_close(one: Tensor, other: Tensor, tolerances: dict[torch.dtype, float]) -> bool:
    """True if two tensors of one shape differ by at most a part of the largest value; whole numbers
    not at all.
    """
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(other.abs().max()) if other.numel() else 0.0
    spread = float((one - other).abs().max()) if other.numel() else 0.0
    return spread <= tolerances.get(one.dtype, 6e-2) * max(scale, 1e-12) or bool(
        other.isnan().any()
    )
