"""A context in which parameters are made without first values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_FILLS = frozenset(
    getattr(Tensor, name)
    for name in (
        "uniform_",
        "normal_",
        "exponential_",
        "cauchy_",
        "log_normal_",
        "geometric_",
        "random_",
        "bernoulli_",
    )
) | {Tensor.erfinv_}
"""The methods that draw first values, and the costly part of torch's truncated normal
distribution.
"""


class EmptyWeights(TorchFunctionMode):
    """Leaves parameters uninitialized: the calls that draw their first values are skipped.

    Buffers and constant fills are initialized as usual, since a checkpoint may leave buffers out.
    So are values that are computed elsewhere and copied, such as orthogonal matrices and, in some
    releases of torch, truncated normal distributions. The random numbers that were not drawn are
    left for later draws.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Answer a torch call in which some parameter may be filled."""
        kwargs = kwargs or {}
        if func in _FILLS or getattr(func, "__module__", "") == "torch.nn.init":
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, nn.Parameter):
                return target
        return func(*args, **kwargs)
