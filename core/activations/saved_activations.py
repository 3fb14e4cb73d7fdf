"""Modules whose activations are computed again in backward, or wait for it in the memory of the CPU.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174. Under every strategy a
unit's `forward` runs within torch's own `checkpoint` and `saved_tensors_hooks`, for as long as it is set up: no module
is put around it, so that names, classes and hooks stay.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from core.activations.recomputation import RecomputedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MARK = "_saves_activations"


def save_activations(
    modules: Iterable[nn.Module], *, checkpoints: bool = True, policy: object = None, offload_from: str | None = None
) -> Callable[[], None]:
    """All ranks. Change the `forward` of each module to keep less for backward, or on the CPU, until this is undone.

    Copies of a module have it too. In evaluation nothing changes.

    Args:
        modules: that are called by their `forward`. One that has this already stays as it is.
        checkpoints: compute its activations again in backward, with the same random numbers and buffers.
        policy: of torch's `create_selective_checkpoint_contexts`: what is kept all the same.
        offload_from: the type of the device from which activations go to the CPU; None, and `"cpu"`, for none.

    Returns:
        Undoes it.
    """
    offload = None if offload_from in (None, "cpu") else partial(offloaded, pin_memory=offload_from == "cuda")
    before: list[tuple[nn.Module, object]] = []
    for module in modules:
        own = vars(module).get("forward")
        if not hasattr(own, _MARK):
            before.append((module, own))
            saving = _saving_forward(own, RecomputedCalls(policy) if checkpoints else None, offload)
            # Bound to the module, so that a copy's is the copy's own. Not by `__setattr__`, which is for modules.
            vars(module)["forward"] = MethodType(saving, module)

    def undo() -> None:
        for module, own in before:
            del module.forward
            if own is not None:
                vars(module)["forward"] = own

    return undo


@contextmanager
def offloaded(*, pin_memory: bool) -> Iterator[None]:
    """A context in which what is kept for backward goes to the CPU. Parameters, and views of them, stay where they are.

    Args:
        pin_memory: copy while the device computes, by memory that it reaches itself.
    """
    move = save_on_cpu(pin_memory=pin_memory)

    def pack(tensor: Tensor) -> object:
        base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
        # What is no plain tensor has parts elsewhere, such as a DTensor.
        stays = isinstance(base, nn.Parameter) or type(tensor) is not Tensor
        return tensor if stays else move.pack_hook(tensor)

    def unpack(packed: object) -> Tensor:
        return packed if isinstance(packed, Tensor) else move.unpack_hook(packed)

    with saved_tensors_hooks(pack, unpack):
        yield


def _saving_forward(
    own: Callable[..., object] | None,
    recomputed: RecomputedCalls | None,
    offload: Callable[[], AbstractContextManager[None]] | None,
) -> Callable[..., object]:
    """The function that stands in the place of a module's `forward`, which may be one of its own."""

    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        call = partial(type(self).forward, self) if own is None else own
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if kwargs:
            call = partial(call, **kwargs)  # `checkpoint` has names of its own
        with nullcontext() if offload is None else offload():
            return call(*args) if recomputed is None else recomputed(self, call, *args)

    setattr(forward, _MARK, True)
    return forward
