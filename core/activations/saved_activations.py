"""Modules whose activations are computed again in backward, or wait for it in the memory of the
CPU.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174.
Under every strategy a unit's `forward` runs within torch's own `checkpoint` and
`saved_tensors_hooks`, for as long as it is set up: no module is put around it, so that names,
classes and hooks stay.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MARK = "_saves_activations"
# From torch 2.15 on it has to be said that what a policy keeps isn't offloaded.
_HOOKS = "respect_saved_tensors_hooks"
_AS_BEFORE: dict[str, Any] = {_HOOKS: False} if _HOOKS in signature(checkpoint).parameters else {}


def save_activations(
    modules: Iterable[nn.Module],
    *,
    checkpoints: bool = True,
    policy: object = None,
    offload_from: str | None = None,
) -> Callable[[], None]:
    """All ranks. Change the `forward` of each module to keep less for backward, or on the CPU,
    until this is undone.

    Copies of a module have it too. In evaluation nothing changes.

    Args:
        modules: that are called by their `forward`. One that has this already stays as it is.
        checkpoints: compute its activations again in backward, with the same random numbers and
            buffers.
        policy: of torch's `create_selective_checkpoint_contexts`: what is kept all the same.
        offload_from: the type of the device from which activations go to the CPU; None, and
            `"cpu"`, for none.

    Returns:
        Undoes it.
    """
    offload: Callable[[], AbstractContextManager[None]] = nullcontext
    if offload_from not in (None, "cpu"):
        offload = partial(offloaded, pin_memory=offload_from == "cuda")
    before: list[tuple[nn.Module, object]] = []
    for module in modules:
        own = vars(module).get("forward")
        if not hasattr(own, _MARK):
            before.append((module, own))
            recomputed = None
            if checkpoints:
                recomputed = RecomputedCalls(policy)
            saving = _saving_forward(own, recomputed, offload)
            # Bound to the module, so that a copy's is the copy's own. Not by `__setattr__`, which
            # is for modules.
            vars(module)["forward"] = MethodType(saving, module)

    def undo() -> None:
        for module, own in before:
            del module.forward
            if own is not None:
                vars(module)["forward"] = own

    return undo


@contextmanager
def offloaded(*, pin_memory: bool) -> Iterator[None]:
    """A context in which what is kept for backward goes to the CPU. Parameters, and views of them,
    stay where they are.

    Args:
        pin_memory: copy while the device computes, by memory that it reaches itself.
    """
    move = save_on_cpu(pin_memory=pin_memory)

    def pack(tensor: Tensor) -> object:
        # What is no plain tensor has parts elsewhere, such as a DTensor.
        if type(tensor) is not Tensor or isinstance(tensor._base, nn.Parameter):
            return tensor
        return move.pack_hook(tensor)

    def unpack(packed: object) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        return move.unpack_hook(packed)

    with saved_tensors_hooks(pack, unpack):
        yield


def _saving_forward(
    own: Callable[..., object] | None,
    recomputed: RecomputedCalls | None,
    offload: Callable[[], AbstractContextManager[None]],
) -> Callable[..., object]:
    """The function that stands in the place of a module's `forward`, which may be one of its
    own.
    """

    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        call = own or partial(type(self).forward, self)
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if kwargs:
            call = partial(call, **kwargs)  # `checkpoint` has names of its own
        with offload():
            if recomputed is None:
                return call(*args)
            return recomputed(self, call, *args)

    setattr(forward, _MARK, True)
    return forward


class RecomputedCalls:
    """Calls of a module, and of its copies, within torch's `checkpoint`, computed again with the
    buffers they had.

    A batch norm would count each batch twice otherwise. Which buffers a forward changes is found in
    the first one, and once more where parts are in other modes by then, as a batch norm that is
    frozen for some epochs.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._changing: dict[tuple[bool, ...], set[int]] = {}
        """Numbers of the parts whose buffers change, by the modes of all parts."""

    def __call__(self, module: nn.Module, call: Callable[..., object], *args: object) -> Any:
        """The module's outputs. A compiler computes nothing again that changes a buffer."""
        if torch.compiler.is_compiling():
            options: dict[str, Any] = {}
            if self._policy is not None:
                contexts = partial(create_selective_checkpoint_contexts, self._policy)
                options["context_fn"] = contexts
            return checkpoint(call, *args, use_reentrant=False, **options)
        kept: list[PartBefore] = []
        parts = list(module.modules())
        modes = tuple(part.training for part in parts)
        known = self._changing.get(modes)
        before = [
            PartBefore(part, known is None or number in known) for number, part in enumerate(parts)
        ]
        outputs = checkpoint(
            call, *args, use_reentrant=False, context_fn=partial(self._contexts, kept), **_AS_BEFORE
        )
        changing = self._changing.setdefault(modes, set())
        for number, part in enumerate(before):
            if part.was_written or (known is None and part.differs):
                changing.add(number)
        kept += [before[number] for number in sorted(changing)]
        return outputs

    def _contexts(self, kept: list[PartBefore]) -> tuple[Any, Any]:
        if self._policy is None:
            return nullcontext(), EarlierBuffers(kept, nullcontext())
        first, again = create_selective_checkpoint_contexts(self._policy)
        return first, EarlierBuffers(kept, again)


class PartBefore:
    """A part of a module as it is before a forward, with copies of its buffers if they are known to
    change, or may.
    """

    def __init__(self, part: nn.Module, copies: bool) -> None:
        self.part = part
        self.buffers = dict(part.named_buffers(recurse=False))
        self._tensors = list(self.buffers.values())
        self._versions = [one._version for one in self._tensors]
        if copies:
            self.buffers = {name: one.clone() for name, one in self.buffers.items()}

    @property
    def was_written(self) -> bool:
        """True if torch has counted a change of a buffer, as it does for most operations but those
        of a batch norm.
        """
        now = list(self.part.buffers(recurse=False))
        if list(map(id, now)) != list(map(id, self._tensors)):
            return True
        return [one._version for one in now] != self._versions

    @property
    def differs(self) -> bool:
        """True if a buffer that was copied has other values. Waits for the device."""
        return not all(map(torch.equal, self._tensors, self.buffers.values()))


class EarlierBuffers:
    """A context in which modules have the buffers that were kept; what becomes of these there is
    forgotten.

    It is entered once more by a second backward through the same graph.
    """

    def __init__(self, kept: list[PartBefore], context: AbstractContextManager[object]) -> None:
        self._kept = kept
        self._context = context
        self._current: list[dict[str, Tensor | None]] = []

    def __enter__(self) -> None:
        self._current = [dict(each.part._buffers) for each in self._kept]
        for each in self._kept:
            each.part._buffers.update({name: one.clone() for name, one in each.buffers.items()})
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        for each, current in zip(self._kept, self._current, strict=True):
            each.part._buffers.update(current)
        self._current = []
