"""Activations of a model's units that are computed again in backward, or wait for it in the memory of the CPU.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174. Under every strategy a
unit's `forward` runs within torch's own `checkpoint` and `saved_tensors_hooks`, for as long as it is set up: no module
is put around it, so that names, classes and hooks stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from core.contract import Capability, ConfigurationError, UnsupportedError
from core.strategies.units import find_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from core.contract import Strategy

_FORMS = (
    "'units', layer classes or names as [Block], a selective policy of torch's (a function (ctx, op, *args, **kwargs) "
    "-> CheckpointPolicy, or a list of operations such as torch.ops.aten.mm.default to keep), or "
    "{'units': [Block], 'policy': ...}"
)

_MARK = "_saves_activations"


class ActivationMemory:
    """The arguments `activation_checkpointing` and `activation_offload` of Trainer and Fabric.

    Args:
        checkpointing: which units are computed again in backward, or by which policy; None for none.
        offload: let what the units keep for backward wait in the memory of the CPU, on devices that have their own.

    Raises:
        ConfigurationError: an argument of no known form.
    """

    def __init__(self, checkpointing: Any = None, offload: bool = False) -> None:
        if not isinstance(offload, bool):
            raise ConfigurationError(f"activation_offload={offload!r}: expected True or False.")
        self.offload = offload
        self.is_checkpointing = checkpointing is not None and checkpointing is not False
        self.listed: Any = None
        self.policy: Any = None
        if self.is_checkpointing:
            self.listed, self.policy = _parse(checkpointing)
        self._asked_by = "activation_checkpointing='units'" if self.is_checkpointing else "activation_offload=True"

    def check(self, strategy: Strategy) -> None:
        """Main process. Refuse a strategy that can't have it, or was passed an option of its own for it.

        Raises:
            ConfigurationError: both say what becomes of activations.
            UnsupportedError: the strategy runs a compiled program.
        """
        name = type(strategy).__name__
        if Capability.COMPILED_STEP in strategy.capabilities:
            raise UnsupportedError(
                f"{self._asked_by}: {name} runs forward and backward as one compiled program, which decides itself "
                "what to keep. Leave it out, or use another strategy.",
                capability=Capability.COMPILED_STEP,
            )
        if strategy.own_activation_option:
            raise ConfigurationError(
                f"{self._asked_by} and {strategy.own_activation_option} of {name} both say what becomes of "
                "activations. Leave one of them out."
            )

    def apply(self, module: nn.Module, device_type: str) -> Callable[[], None]:
        """All ranks, before a module is wrapped. Change its units to keep less.

        Returns:
            Undoes it.

        Raises:
            ConfigurationError: there are no units, or something that was listed isn't in the model.
        """
        units = find_units(module, self.listed, asked_by=self._asked_by)
        if idle := [name for name, part in units.named.items() if type(part).forward is nn.Module.forward]:
            raise ConfigurationError(
                f"{self._asked_by}: {idle[0]!r} is a {type(units.named[idle[0]]).__name__}, which is never called "
                "itself. List the layers in it."
            )
        return save_activations(
            units.named.values(),
            checkpoints=self.is_checkpointing,
            policy=self.policy,
            offload_from=device_type if self.offload else None,
        )


def save_activations(
    modules: Iterable[nn.Module], *, checkpoints: bool = True, policy: Any = None, offload_from: str | None = None
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
    before: list[tuple[nn.Module, Any]] = []
    for module in modules:
        own = vars(module).get("forward")
        if not hasattr(own, _MARK):
            before.append((module, own))
            saving = _saving_forward(own, _Checkpoint(policy) if checkpoints else None, offload)
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

    def pack(tensor: Tensor) -> Any:
        base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
        # What is no plain tensor has parts elsewhere, such as a DTensor.
        stays = isinstance(base, nn.Parameter) or type(tensor) is not Tensor
        return tensor if stays else move.pack_hook(tensor)

    def unpack(packed: Any) -> Tensor:
        return packed if isinstance(packed, Tensor) else move.unpack_hook(packed)

    with saved_tensors_hooks(pack, unpack):
        yield


def _saving_forward(
    own: Callable[..., Any] | None,
    checkpointed: _Checkpoint | None,
    offload: Callable[[], AbstractContextManager[None]] | None,
) -> Callable[..., Any]:
    """The function that stands in the place of a module's `forward`, which may be one of its own."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = partial(type(self).forward, self) if own is None else own
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if kwargs:
            call = partial(call, **kwargs)  # `checkpoint` has names of its own
        with nullcontext() if offload is None else offload():
            return call(*args) if checkpointed is None else checkpointed(self, call, *args)

    setattr(forward, _MARK, True)
    return forward


class _Checkpoint:
    """Calls of a module, and of its copies, within torch's `checkpoint`, computed again with the buffers they had.

    A batch norm would count each batch twice otherwise. Which buffers a forward changes is found in the first one, and
    once more where parts are in other modes by then, as a batch norm that is frozen for some epochs.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._changing: dict[tuple[bool, ...], set[int]] = {}
        """Numbers of the buffers that change, by the modes of all parts."""

    def __call__(self, module: nn.Module, call: Callable[..., Any], *args: Any) -> Any:
        """The module's outputs. A compiler computes nothing again that changes a buffer."""
        if torch.compiler.is_compiling():
            if self._policy is None:
                return checkpoint(call, *args, use_reentrant=False)
            contexts = partial(create_selective_checkpoint_contexts, self._policy)
            return checkpoint(call, *args, use_reentrant=False, context_fn=contexts)
        kept: list[_Buffer] = []
        parts = list(module.modules())
        modes = tuple(part.training for part in parts)
        buffers = _buffers_of(parts, self._changing.get(modes))
        outputs = checkpoint(call, *args, use_reentrant=False, context_fn=partial(self._contexts, kept))
        if modes not in self._changing:
            self._changing[modes] = {number for number, buffer in enumerate(buffers) if buffer.differs}
        changing = self._changing[modes]
        changing |= {number for number, buffer in enumerate(buffers) if buffer.was_written}
        kept += [buffers[number] for number in sorted(changing)]
        return outputs

    def _contexts(self, kept: list[_Buffer]) -> tuple[Any, Any]:
        if self._policy is None:
            return nullcontext(), _WithBuffers(kept, nullcontext())
        first, again = create_selective_checkpoint_contexts(self._policy)
        return first, _WithBuffers(kept, again)


@dataclass(slots=True)
class _Buffer:
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


def _buffers_of(parts: Iterable[nn.Module], changing: set[int] | None) -> list[_Buffer]:
    """The buffers of a module's parts, with copies of those whose numbers are given, or of all."""
    places = ((part, name, tensor) for part in parts for name, tensor in part.named_buffers(recurse=False))
    return [
        _Buffer(*place, place[2]._version, place[2].clone() if changing is None or number in changing else None)
        for number, place in enumerate(places)
    ]


class _WithBuffers:
    """A context in which modules have the buffers that were kept; what becomes of these there is forgotten.

    It is entered once more by a second backward through the same graph.
    """

    def __init__(self, kept: list[_Buffer], context: AbstractContextManager[Any]) -> None:
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


def _parse(checkpointing: Any) -> tuple[Any, Any]:
    """The listed units, None for those of the model; and the selective policy, None for none."""
    if isinstance(checkpointing, Mapping):
        if not checkpointing or checkpointing.keys() - {"units", "policy"}:
            raise ConfigurationError(f"activation_checkpointing={dict(checkpointing)!r}: expected {_FORMS}.")
        listed, _ = _parse(checkpointing.get("units", "units"))
        policy = checkpointing.get("policy")
        if policy is not None and not _is_policy(policy):
            raise ConfigurationError(f"activation_checkpointing has the policy {policy!r}: expected {_FORMS}.")
        return listed, _as_policy(policy)
    if isinstance(checkpointing, str) and checkpointing == "units":
        return None, None
    if _is_policy(checkpointing):
        return None, _as_policy(checkpointing)
    items = [checkpointing] if isinstance(checkpointing, type) else checkpointing
    is_listed = isinstance(items, list | tuple | set | frozenset) and items
    if not is_listed or not all(isinstance(item, str) or _is_layer_class(item) for item in items):
        raise ConfigurationError(f"activation_checkpointing={checkpointing!r}: expected {_FORMS}.")
    return items, None


def _is_layer_class(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, nn.Module)


def _is_policy(given: Any) -> bool:
    if isinstance(given, list | tuple | set | frozenset):
        return bool(given) and all(isinstance(item, torch._ops.OpOverload) for item in given)
    return callable(given) and not isinstance(given, type)


def _as_policy(given: Any) -> Any:
    return list(given) if isinstance(given, tuple | set | frozenset) else given
