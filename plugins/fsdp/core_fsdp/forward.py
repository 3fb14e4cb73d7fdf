"""The runs of methods and the exchange of gradients in a module of several units."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.utils._pytree import tree_leaves

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn


_EXPLAINED = {
    "mixed torch.Tensor and DTensor": "A parameter was used where its unit isn't gathered ({}): it "
    "is whole while the forward of its unit runs. Call the blocks by their forward, and compute "
    "penalties of their parameters there; or gather the model as one unit by "
    "auto_wrap_policy=None, or other units by a policy of your own.",
    "not have been used in the graph": "torch.autograd.grad was asked for a gradient that isn't "
    "there. A unit uses the gathered copy of its parameters, and not the shards that "
    "parameters() names: call backward, after which .grad is that of the shards.",
}
"""Meanings of torch's errors here, by what they say."""


def as_forward_of(module: nn.Module, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs as the module's forward does: parameters are gathered before, hooks of
    backward set after.

    Args:
        module: a unit.
        name: of the method, such as `"training_step"`.
        method: what is to be called, bound.
    """
    attributes = vars(module)
    # torch wraps the attribute of the module, so the method is put there for that.
    own = attributes.get(name)
    attributes[name] = method
    register_fsdp_forward_method(module, name)
    # torch leaves it on the module. There it would hide the user's own, also from who asks for its
    # signature.
    routed: Callable[..., Any] = attributes.pop(name)
    if own is not None:
        attributes[name] = own
    return routed


def without_inference_mode(
    method: Callable[..., Any], units: Sequence[FSDPModule]
) -> Callable[..., Any]:
    """The method, so that it may run in inference mode before or between steps of training, and
    explains `mixed_use`.

    Gathered parameters are kept from step to step: made in inference mode, they could never train.
    And after a step without gradients nothing would free them.
    """
    if not units:
        return method

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if torch.is_grad_enabled():
                return method(*args, **kwargs)
            with torch.inference_mode(False), torch.no_grad():
                output = method(*args, **kwargs)
        except RuntimeError as error:
            if explained := mixed_use(error):
                raise explained from error
            raise
        reshard(units)
        return output

    return call


def mixed_use(error: RuntimeError) -> ModuleError | None:
    """An error that explains torch's over a parameter that lies in shards; None for another one."""
    text = str(error)
    for part, explained in _EXPLAINED.items():
        if part in text:
            return ModuleError(explained.format(text.partition(",")[0]))
    return None


def refuse_second_derivatives(module: nn.Module, reason: str) -> None:
    """Make it an error to differentiate gradients that went through a module again.

    Args:
        module: in whose results they come.
        reason: why, and what to do.
    """
    module.register_forward_hook(partial(_watch_gradients, reason))


def _watch_gradients(reason: str, module: nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling():  # which refuses second derivatives itself
        return
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(partial(refuse_graph, reason))


def refuse_graph(reason: str, gradient: Tensor | None = None) -> None:
    """Within a backward: refuse to make a graph of a gradient.

    Args:
        reason: why, and what to do.
        gradient: for which torch calls it as a hook; it is left as it is.

    Raises:
        ModuleError: a graph is made.
    """
    if torch.is_grad_enabled():
        raise ModuleError(
            "A gradient was to be differentiated again (create_graph=True), as in a gradient "
            f"penalty or MAML. {reason}"
        )


@contextmanager
def no_sync(units: Sequence[FSDPModule]) -> Iterator[None]:
    """A context in which backward leaves gradients whole and local; the next one outside reduces
    their sum.
    """
    for unit in units:
        unit.set_requires_gradient_sync(False, recurse=False)
    try:
        yield
    finally:
        for unit in units:
            unit.set_requires_gradient_sync(True, recurse=False)


def reshard(units: Sequence[FSDPModule]) -> None:
    """Release what is gathered: it may be older than the shards."""
    for unit in units:
        unit.reshard()


def prefetch_forward(units: Sequence[FSDPModule]) -> None:
    """Gather each unit's parameters while the one before it computes."""
    for unit, following in pairwise(units):
        unit.set_modules_to_forward_prefetch([following])
