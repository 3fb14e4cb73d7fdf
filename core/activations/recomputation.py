"""Calls of a module whose activations are computed again in backward, with the buffers that the call began with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# From torch 2.15 on it has to be said that what a policy keeps isn't offloaded.
_HOOKS = "respect_saved_tensors_hooks"
_AS_BEFORE: dict[str, Any] = {_HOOKS: False} if _HOOKS in signature(checkpoint).parameters else {}


class RecomputedCalls:
    """Calls of a module, and of its copies, within torch's `checkpoint`, computed again with the buffers they had.

    A batch norm would count each batch twice otherwise. Which buffers a forward changes is found in the first one, and
    once more where parts are in other modes by then, as a batch norm that is frozen for some epochs.
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
        outputs = checkpoint(call, *args, use_reentrant=False, context_fn=partial(self._contexts, kept), **_AS_BEFORE)
        if modes not in self._changing:
            self._changing[modes] = {number for number, buffer in enumerate(buffers) if buffer.differs}
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
    places = ((part, name, tensor) for part in parts for name, tensor in part.named_buffers(recurse=False))
    return [
        BufferBefore(*place, place[2]._version, place[2].clone() if changing is None or number in changing else None)
        for number, place in enumerate(places)
    ]


class EarlierBuffers:
    """A context in which modules have the buffers that were kept; what becomes of these there is forgotten.

    It is entered once more by a second backward through the same graph.
    """

    def __init__(self, kept: list[BufferBefore], context: AbstractContextManager[object]) -> None:
        self._kept = kept
        self._context = context
        self._current: list[Tensor] = []

    def __enter__(self) -> None:
        self._current = [getattr(buffer.owner, buffer.name) for buffer in self._kept]
        for buffer, tensor in zip(self._kept, self._current, strict=True):
            setattr(buffer.owner, buffer.name, (tensor if buffer.copy is None else buffer.copy).clone())
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        for buffer, tensor in zip(self._kept, self._current, strict=True):
            setattr(buffer.owner, buffer.name, tensor)
        self._current = []
