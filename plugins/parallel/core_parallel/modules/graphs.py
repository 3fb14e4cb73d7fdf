"""Looks at autograd's graphs: of one microbatch in one stage."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import refuse
from core_parallel.modules.own_state import OF_EVERY_MODULE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_ACCUMULATES = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]  # torch's own
_HOLDERS = (Tensor, list, tuple, dict)


def nodes_behind(tensors: Iterable[Any]) -> Iterator[Any]:
    """The nodes of the graph that ends in some tensors, each once; those of leaves aren't among
    them.
    """
    waiting = [
        one.grad_fn for one in tensors if isinstance(one, Tensor) and one.grad_fn is not None
    ]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for other, _ in node.next_functions:
            if other is not None and other not in seen and not is_of_leaf(other):
                seen.add(other)
                waiting.append(other)


def is_of_leaf(node: Any) -> bool:
    """True for the node that adds gradients up in a leaf, its `variable`."""
    return type(node) is _ACCUMULATES


def uses_twice(tensors: Iterable[Any]) -> bool:
    """True if a leaf enters the graph in two places, as a weight that two layers share does.

    torch's schedules that compute the gradients of weights later than those of inputs can't do it
    for such a stage.
    """
    entered = [
        other
        for node in nodes_behind(tensors)
        for other, _ in node.next_functions
        if is_of_leaf(other)
    ]
    return len(set(entered)) < len(entered)


def kept(named: Iterable[tuple[str, nn.Module]]) -> set[int]:
    """Identities of the tensors with a graph that modules keep as attributes."""
    return {id(leaf) for _, _, _, leaf in _kept(named)}


def refuse_kept(named: Iterable[tuple[str, nn.Module]], before: Collection[int] = ()) -> None:
    """Refuse modules that keep a tensor with a graph as an attribute: a loss of their own, which
    the step would add.

    Args:
        named: the modules of a stage, after a forward, or those around all stages; or all that see
            a part.
        before: identities of the tensors that they kept before it.

    Raises:
        ModuleError: with the attribute's name.
    """
    for name, module, key, leaf in _kept(named):
        if id(leaf) not in before:
            title = f"{type(module).__name__} {name!r}" if name else type(module).__name__
            text = (
                f"{title} keeps a tensor with a graph in its attribute {key!r}, such as a loss of "
                "a part's own. A training step would find what this rank has computed: of one "
                "stage and one of several microbatches, or of a part of the sequence. Return it "
                "with the result, through the parts behind; or detach it."
            )
            refuse(ModuleError(text))


def _kept(named: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    for name, module in named:
        own = vars(module)
        for key in own.keys() - OF_EVERY_MODULE:
            for leaf in _with_graphs(own[key]):
                yield name, module, key, leaf
        for hook in module._forward_hooks.values():
            for key, value in _bound_in(hook):
                for leaf in _with_graphs(value):
                    yield name, module, f"{key} of a hook", leaf


def _with_graphs(value: Any) -> list[Tensor]:
    """The tensors with a graph that a value holds, if it is a tensor, a list, a tuple or a dict."""
    if not isinstance(value, _HOLDERS):
        return []
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.grad_fn is not None]


def _bound_in(hook: Any) -> list[tuple[str, Any]]:
    """Return where a hook may keep something, by name: variables around it, attributes of a
    method's object.
    """
    code, cells = getattr(hook, "__code__", None), getattr(hook, "__closure__", None) or ()
    bound = []
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        with suppress(ValueError):  # nothing is bound yet
            bound.append((name, cell.cell_contents))
    owner = getattr(hook, "__self__", None)
    if not isinstance(owner, nn.Module):
        bound += getattr(owner, "__dict__", {}).items()
    return bound
