"""Gradients of parameters as terms: each rank of a context group has that of its part of the
sequence, and their sum is the gradient.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from core import ModuleError
from core.contract import refuse
from core_parallel.communication import collectives
from core_parallel.following import lengths
from core_parallel.mesh.placements import own_part
from core_parallel.modules.absent import is_absent
from core_parallel.modules.graphs import is_of_leaf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle


def share(loss: Tensor, group: Any) -> list[RemovableHandle]:
    """Before a backward: give parameters that all ranks use alike, beside calls in parts, a term
    each.

    Within a call each rank computes with its part of the sequence, and the gradients of its
    parameters are terms. Beside calls each computes the whole: its term is a share of that.

    Args:
        loss: with the graph; it is walked, and nothing in it is computed.
        group: of the ranks, a context group.

    Returns:
        Handles of hooks in the graph.

    Raises:
        ModuleError: a Function has kept a size of a part; or a tensor is used within a call and
            beside it, and is neither an argument nor a result, so that its gradient is neither a
            term nor a whole.
    """
    in_parts: dict[Node, bool] = {}
    waiting: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    handles: list[RemovableHandle] = []
    while waiting:
        node, is_part = waiting.pop()
        if node is None:
            continue
        if node in in_parts:
            if in_parts[node] != is_part:
                text = _USED_TWICE.format(node.name(), group.size())
                refuse(ModuleError(text), axis="context")
            continue
        in_parts[node] = is_part
        lengths.refuse_in(node, f"of which each of {group.size()} ranks has a part under context=")
        is_part = collectives.leads_into_parts(node, group, is_part)
        whole: list[int] = []
        for place, (following, _) in enumerate(node.next_functions):
            if following is None or not is_of_leaf(following):
                waiting.append((following, is_part))
            elif not is_part and isinstance(following.variable, nn.Parameter):
                whole.append(place)
        if whole:
            handles.append(node.register_hook(partial(_shared, group.size(), whole)))
    return handles


_USED_TWICE = (
    "What {} has computed is used within a call of the model, where each of {} ranks has a part of "
    "the sequence under context=, and beside that call: ranks can't add up its gradient. Give it "
    "to the call as an argument, return it as a result by position, or leave context out."
)


def _shared(size: int, places: list[int], gradients: Any, incoming: Any) -> Any:
    """The gradients that a node gives, those at some places divided."""
    shared = list(gradients)
    for place in places:
        if shared[place] is not None:
            shared[place] = shared[place] / size
    return tuple(shared)


class Terms:
    """The gradients of modules' parameters, from a backward to the sum over a context group.

    Args:
        group: of the ranks.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._held: set[nn.Module] = set()

    @contextmanager
    def of(self, loss: Tensor, modules: Iterable[nn.Module]) -> Iterator[None]:
        """A context for a backward, which adds terms. Whole gradients of earlier ones become terms
        first.
        """
        handles = share(loss, self._group)
        whole = [one for one in modules if one not in self._held]
        _multiply(whole, 1 / self._group.size())
        self._held.update(whole)
        try:
            yield
        finally:
            for one in handles:
                one.remove()

    def end(self, modules: Iterable[nn.Module]) -> None:
        """After the average over all ranks: make it the sum over those of the context group."""
        _multiply(modules, self._group.size())
        self._held.difference_update(modules)


def _multiply(modules: Iterable[nn.Module], factor: float) -> None:
    parameters = dict.fromkeys(one for module in modules for one in module.parameters())
    found = [own_part(one.grad) for one in parameters if one.grad is not None]
    if found:
        torch._foreach_mul_(found, factor)


def refuse_terms(module: nn.Module, size: int, gradient: Tensor) -> None:
    """Within a backward: refuse `torch.autograd.grad` for parameters.

    Args:
        module: that was called in parts.
        size: of the context group.
        gradient: for which torch calls it as a hook; it is left as it is.

    Raises:
        ModuleError: with the name of one of them.
    """
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or is_absent(parameter):
            continue
        try:
            if torch._C._will_engine_execute_node(get_gradient_edge(parameter).node):
                return  # backward() adds it up over the ranks
        except RuntimeError as error:  # torch's answer where the gradient is what was asked for
            raise ModuleError(
                f"torch.autograd.grad was asked for the gradient of {name!r}, of which each of "
                f"{size} ranks has a term under context=: that of its part of the sequence. Call "
                "backward, after which .grad is whole; or leave context out."
            ) from error
