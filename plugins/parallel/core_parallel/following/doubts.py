"""Doubts about gradients that the user's own code computes, which aren't followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

from core.contract import doubt
from core_parallel.following.marks import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


def note(axis: str, given: Iterable[Tensor]) -> None:
    """Doubt what happens to gradients of tensors that have a mark.

    Args:
        axis: of the mesh.
        given: the tensors that an operation is given.
    """
    for one in given:
        if mark_of(one, axis) is None:
            continue
        node: Any = one.grad_fn
        if isinstance(node, BackwardCFunction):
            name = node._forward_cls.__name__  # type: ignore[attr-defined]  # torch's
            _doubt(axis, f"the backward of {name}", node._forward_cls.backward)  # type: ignore[attr-defined]
        for hook in (one._backward_hooks or {}).values():
            _doubt(axis, "a hook of a gradient", getattr(hook, "func", hook))


def _doubt(axis: str, what: str, function: Any) -> None:
    package = str(function.__module__).partition(".")[0]
    if package not in ("torch", "core") and not package.startswith("core_"):
        code = function.__code__
        doubt(
            f"What {what} computes isn't followed: right if it treats each value alike.",
            axis=axis,
            place=f"{code.co_filename}:{code.co_firstlineno}",
        )
