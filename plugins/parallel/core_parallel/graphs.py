"""Looks at autograd's graphs: of one microbatch in one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable


def uses_twice(tensors: Iterable[Any]) -> bool:
    """True if a leaf enters the graph in two places, as a weight that two layers share does.

    torch's schedules that compute the gradients of weights later than those of inputs can't do it for such a stage.
    """
    waiting = [one.grad_fn for one in tensors if isinstance(one, Tensor) and one.grad_fn is not None]
    seen, entered = set(waiting), set()
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable"):
                if node in entered:
                    return True
                entered.add(node)
            elif node not in seen:
                seen.add(node)
                waiting.append(node)
    return False


def refuse_kept(named: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse modules that keep a tensor with a graph as an attribute: a loss of their own, which the step would add.

    Args:
        named: the modules of a stage, after a forward.

    Raises:
        ModuleError: with the attribute's name.
    """
    for name, module in named:
        for key, value in vars(module).items():
            if key.startswith("_") and key in ("_parameters", "_buffers", "_modules"):
                continue
            if not isinstance(value, Tensor) and not (value and isinstance(value, list | tuple | dict)):
                continue  # most of a module's own containers are empty
            if any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in tree_leaves(value)):
                raise ModuleError(
                    f"{type(module).__name__} {name!r} keeps a tensor with a graph in its attribute {key!r}, such as a "
                    "loss of its own. A training step would find it on the rank of its stage alone, and one of several "
                    "microbatches. Return it with the part's result, through the parts behind it; or detach it."
                )
