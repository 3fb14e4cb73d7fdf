"""torch's own `clip_grad_norm_`, for gradients over several meshes and those that stages of a
pipeline have.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from torch import Tensor
from torch.nn.utils import clip_grad, clip_grads_with_norm_, get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KnowsNorm(Protocol):
    """A strategy that knows where gradients lie."""

    def norm_of(self, gradients: Sequence[Tensor], norm_type: float) -> Tensor | None:
        """All ranks. The norm over all ranks of what is clipped here; None leaves it to torch."""


_knowing: WeakSet[KnowsNorm] = WeakSet()


def follow(strategy: KnowsNorm) -> None:
    """Make `clip_grad_norm_` ask a strategy too. Under whatever name it was imported, it looks up
    these two itself.
    """
    own = vars(clip_grad)
    if (
        own.get("_get_total_norm") is get_total_norm
        and own.get("_clip_grads_with_norm_") is clip_grads_with_norm_
    ):
        own.update(_get_total_norm=_total_norm, _clip_grads_with_norm_=_clip)
    _knowing.add(strategy)


def leave(strategy: KnowsNorm) -> None:
    """Ask it no longer; idempotent. After the last one torch has its own functions again."""
    _knowing.discard(strategy)
    if not _knowing and is_followed():
        vars(clip_grad).update(
            _get_total_norm=get_total_norm, _clip_grads_with_norm_=clip_grads_with_norm_
        )


def is_followed() -> bool:
    """True if `clip_grad_norm_` asks strategies; another release of torch may have no such
    names.
    """
    return vars(clip_grad).get("_get_total_norm") is _total_norm


def by_mesh(gradients: Iterable[Tensor]) -> list[list[Any]]:
    """Gradients by the mesh over which they lie: one operation takes tensors of one mesh only."""
    groups: dict[object, list[Any]] = defaultdict(list)
    for one in gradients:
        groups[getattr(one, "device_mesh", None)].append(one)
    return list(groups.values())


def clip(
    parameters: Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale gradients that lie over any meshes in place, as `clip_grads_with_norm_` does."""
    holders = {id(one.grad): one for one in parameters if one.grad is not None}
    for group in by_mesh(one.grad for one in holders.values() if one.grad is not None):
        clip_grads_with_norm_([holders[id(one)] for one in group], max_norm, total_norm, foreach)


def _total_norm(
    tensors: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    gradients = _listed(tensors)
    for one in list(_knowing):
        total = one.norm_of(gradients, norm_type)
        if total is not None:
            return get_total_norm([total], norm_type, error_if_nonfinite)
    return get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)


def _clip(
    parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    clip(_listed(parameters), max_norm, total_norm, foreach)


def _listed(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return list(tensors)
