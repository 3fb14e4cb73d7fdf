"""Modules whose activations are computed again in backward, or wait for it in the memory of the
CPU.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174.
Under every strategy a unit's `forward` runs within torch's own `checkpoint` and
`saved_tensors_hooks`, for as long as it is set up: no module is put around it, so that names,
classes and hooks stay.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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
    offload = (
        None
        if offload_from in (None, "cpu")
        else partial(offloaded, pin_memory=offload_from == "cuda")
    )
    before: list[tuple[nn.Module, object]] = []
    for module in modules:
        own = vars(module).get("forward")
        if not hasattr(own, _MARK):
            before.append((module, own))
            saving = _saving_forward(own, RecomputedCalls(policy) if checkpoints else None, offload)
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
    """The function that stands in the place of a module's `forward`, which may be one of its
    own.
    """

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
        """Numbers of the buffers that change, by the modes of all parts."""

    def __call__(self, module: nn.Module, call: Callable[..., object], *args: object) -> Any:
        """The module's outputs. A compiler computes nothing again that changes a buffer."""
        if torch.compiler.is_compiling():
            if self._policy is None:
                return checkpoint(call, *args, use_reentrant=False)
            contexts = partial(create_selective_checkpoint_contexts, self._policy)
            return checkpoint(call, *args, use_reentrant=False, context_fn=contexts)
        kept: list[BufferBefore] = []
        parts = list(module.modules())
        modes = tuple(part.training for part in parts)
        buffers = _buffers_of(parts, self._changing.get(modes))
        outputs = checkpoint(
            call, *args, use_reentrant=False, context_fn=partial(self._contexts, kept), **_AS_BEFORE
        )
        if modes not in self._changing:
            self._changing[modes] = {
                number for number, buffer in enumerate(buffers) if buffer.differs
            }
        changing = self._changing[modes]
        changing |= {number for number, buffer in enumerate(buffers) if buffer.was_written}
        kept += [buffers[number] for number in sorted(changing)]
        return outputs

    def _contexts(self, kept: list[BufferBefore]) -> tuple[Any, Any]:
        if self._policy is None:
            return nullcontext(), EarlierBuffers(kept, nullcontext())
        first, again = create_selective_checkpoint_contexts(self._policy)
        return first, EarlierBuffers(kept, again)


@dataclass(slots=True)
class BufferBefore:
    """A buffer as it is before a forward.

    Attributes:
        owner, name: its place.
        tensor, version: the tensor there, and how often it was written by then.
        copy: of its values; None where forwards before have left it as it was.
    """

    owner: nn.Module
    name: str
    tensor: Tensor
    version: int
    copy: Tensor | None

    @property
    def differs(self) -> bool:
        """True if the forward has changed its values. Waits for the device."""
        return self.copy is not None and not torch.equal(self.copy, getattr(self.owner, self.name))

    @property
    def was_written(self) -> bool:
        """True if torch has counted a change, as it does for most operations but a batch norm's."""
        now = getattr(self.owner, self.name)
        return now is not self.tensor or now._version != self.version


def _buffers_of(parts: Iterable[nn.Module], changing: set[int] | None) -> list[BufferBefore]:
    """The buffers of a module's parts, with copies of those whose numbers are given, or of all."""
    places = (
        (part, name, tensor) for part in parts for name, tensor in part.named_buffers(recurse=False)
    )
    return [
        BufferBefore(
            *place,
            place[2]._version,
            place[2].clone() if changing is None or number in changing else None,
        )
        for number, place in enumerate(places)
    ]


class EarlierBuffers:
    """A context in which modules have the buffers that were kept; what becomes of these there is
    forgotten.

    It is entered once more by a second backward through the same graph.
    """

    def __init__(self, kept: list[BufferBefore], context: AbstractContextManager[object]) -> None:
        self._kept = kept
        self._context = context
        self._current: list[Tensor] = []

    def __enter__(self) -> None:
        self._current = [getattr(buffer.owner, buffer.name) for buffer in self._kept]
        for buffer, tensor in zip(self._kept, self._current, strict=True):
            setattr(
                buffer.owner, buffer.name, (tensor if buffer.copy is None else buffer.copy).clone()
            )
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        for buffer, tensor in zip(self._kept, self._current, strict=True):
            setattr(buffer.owner, buffer.name, tensor)
        self._current = []
