"""Parts of the model that another rank of the pipeline has: their names, shapes and groups stay,
their memory goes.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core import ModuleError
from core_parallel.modules import torch_clipping

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from types import FrameType

    from torch.utils.hooks import RemovableHandle

_ABOUT = frozenset(
    {
        "__get__",
        "__set__",
        "__repr__",
        "__hash__",
        "__len__",
        "__deepcopy__",
        "__reduce_ex__",
        "_backward_hooks",
        "size",
        "stride",
        "dim",
        "numel",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "detach",
        "requires_grad_",
        "data_ptr",
        "empty_like",
        "new_empty_strided",
        "register_hook",
        "to",
        "double",
        "float",
        "half",
        "bfloat16",
        "_has_compatible_shallow_copy_type",
    }
)
"""Functions of torch that ask about a tensor, or need nothing but its form."""

_CAREFUL = frozenset({"torch", "core", "core_fsdp", "core_parallel"})


class AbsentTensor(Tensor):
    """A tensor that another rank has: on meta, without memory. To compute with it is an error that
    says so.

    Some of torch's functions would mix it with tensors that are here, and return numbers that mean
    nothing.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function that asks about the tensor, and refuse others.

        Raises:
            ModuleError: something computes with it.
        """
        name = func.__name__
        # What is written to it, as by an initialization, goes nowhere.
        is_written = name.endswith("_") and not name.endswith("__") and _is_there_alone(*args)
        if name not in _ABOUT and not is_written:
            raise ModuleError(
                f"{name} was called with a parameter or buffer that another stage has, such as in "
                "a penalty over self.parameters(): each rank of a pipeline has those of its own "
                "stage only. Give the optimizer a weight_decay, or compute that in the part that "
                "has it."
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            # Without the class a copy of it, such as `.data` or `.T`, would be mixed with tensors
            # that are here.
            if type(result) is Tensor and result.is_meta:
                return result.as_subclass(AbsentTensor)
            return result

    def __deepcopy__(self, memo: dict[int, Any]) -> AbsentTensor:
        """Another one, as absent."""
        with torch._C.DisableTorchFunctionSubclass():
            memo[id(self)] = copied = self.detach().as_subclass(AbsentTensor)
        return copied


def _is_there_alone(written: Any, *others: Any) -> bool:
    """True if what is written to is absent too, of lists wherever another is: as in the average of
    two models.
    """
    if isinstance(written, list | tuple):
        lists = [one for one in others if isinstance(one, list | tuple)]
        return all(
            isinstance(one, AbsentTensor)
            or not any(isinstance(each[index], AbsentTensor) for each in lists)
            for index, one in enumerate(written)
        )
    return isinstance(written, AbsentTensor)


class AbsentParameter(AbsentTensor, nn.Parameter):
    """A parameter that another rank has. Optimizers have it in its group, and leave it as one
    without a gradient.
    """

    own_device: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of this rank, as code that asks any parameter for it expects; by `is_meta` it
        is absent.
        """
        return self.own_device

    @property
    def grad(self) -> Tensor | None:
        """None. Optimizers and the like may ask; to read it anywhere else is an error, since a sum
        would leave it out.

        Raises:
            ModuleError: a step, a hook or a loop reads it.
        """
        if not _may_leave_out(sys._getframe(1)):
            raise ModuleError(
                "The gradient of a parameter that another stage has was read, as for a norm over "
                "self.parameters(): each rank of a pipeline has the gradients of its own stage "
                "only. clip_gradients of the Module, or of Fabric, clips by the norm over all "
                "stages and returns it; float('inf') as its limit only measures. What looks at "
                "each gradient by itself leaves out parameters whose is_meta is True."
            )
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        """Nothing to keep: what is set is None, or as absent."""

    def __deepcopy__(self, memo: dict[int, Any]) -> AbsentParameter:
        """Another one, as absent."""
        memo[id(self)] = copied = _absent(self.own_device, self)
        return copied


def _may_leave_out(reader: FrameType | None) -> bool:
    """True if who reads a gradient looks at each by itself: an optimizer, or what torch and core do
    around its step.
    """
    if reader is not None and _package(reader) in _CAREFUL:
        around = (reader, reader.f_back)  # in Python 3.11 a comprehension has a frame of its own
        clips = any(one is not None and one.f_code.co_name == "clip_grad_norm_" for one in around)
        return not clips or torch_clipping.is_followed()
    while reader is not None and _package(reader) != "core":
        if isinstance(reader.f_locals.get("self"), torch.optim.Optimizer):
            return True
        reader = reader.f_back
    return False


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_absent(tensor: Any) -> bool:
    """True if another rank has it."""
    return isinstance(tensor, AbsentTensor)


def drop(modules: Iterable[nn.Module], device: torch.device, owned: Container[int]) -> int:
    """Release the memory of parameters and buffers, in place. What modules share stays shared.

    Args:
        modules: parts that other ranks have.
        device: of this rank.
        owned: the identities of tensors that one rank has; others stay here too.

    Returns:
        The bytes that they had; none if they were on meta.
    """
    made: dict[int, tuple[Tensor, Any]] = {}
    for part in (part for module in modules for part in module.modules()):
        for tensors, absent in (
            (part._parameters, partial(_absent, device)),
            (part._buffers, _absent_buffer),
        ):
            for name, tensor in tensors.items():
                if tensor is not None and not is_absent(tensor) and id(tensor) in owned:
                    # With the tensor itself, so that no other one gets its identity.
                    tensors[name] = made.setdefault(id(tensor), (tensor, absent(tensor)))[1]
    return sum(tensor.nbytes for tensor, _ in made.values() if not tensor.is_meta)


def _absent_buffer(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer, device="meta").as_subclass(AbsentTensor)


def _absent(device: torch.device, parameter: Tensor) -> AbsentParameter:
    absent = AbsentParameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    absent.own_device = device
    return absent


def guard(modules: Iterable[tuple[str, nn.Module]], reason: str) -> list[RemovableHandle]:
    """Make calls of absent parts an error that names them, for as long as the hooks are there.

    Args:
        modules: the parts, by their names.
        reason: says where they are, and what to do.
    """

    def refuse(name: str, module: nn.Module, *_: Any) -> None:
        raise ModuleError(f"{type(module).__name__} {name!r} was called, and {reason}")

    return [module.register_forward_pre_hook(partial(refuse, name)) for name, module in modules]
