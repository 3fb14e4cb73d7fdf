"""The losses that can be taken in parts, and their arguments."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from torch.nn import functional
from torch.nn._reduction import legacy_get_string

if TYPE_CHECKING:
    from collections.abc import Callable

CROSS_ENTROPY = functional.cross_entropy
# torch has it since 2.13
LINEAR_CROSS_ENTROPY = getattr(functional, "linear_cross_entropy", CROSS_ENTROPY)
BY_POSITION: frozenset[Callable[..., Any]] = frozenset(
    (CROSS_ENTROPY, LINEAR_CROSS_ENTROPY, functional.nll_loss)
)
"""The functions whose loss is the sum, or the mean, of one number for each position that isn't
ignored.
"""

IGNORED = -100


def bound(loss: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a loss by their names."""
    given = dict(signature(loss).bind(*args, **kwargs).arguments)
    earlier = given.pop("size_average", None), given.pop("reduce", None)
    if earlier != (None, None):
        given["reduction"] = legacy_get_string(*earlier)
    return given
