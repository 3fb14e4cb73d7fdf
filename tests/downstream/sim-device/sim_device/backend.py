"""Teaches torch the device type `sim`: a PrivateUse1 backend in Python.

A tensor on the device is a wrapper around one on the CPU, on which every operation runs. To import this module is to
register the device in this process, for good. It has to happen before the first backward of the process, which is when
torch's autograd looks which devices there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_aten = torch.ops.aten
# These take tensors of two devices, as on any other kind of device.
_CROSSES_DEVICES = {_aten.copy_.default, _aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default}


class SimTensor(torch.Tensor):
    """A tensor on `sim:0`, of the same shape and dtype as the one on the CPU that it wraps."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> SimTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("sim", 0),
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, *args, **(kwargs or {}))

    # With these two, `module.to("sim")` swaps parameters and keeps their identity.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> SimTensor:
        return SimTensor(tensors["raw"])

    def tolist(self) -> Any:
        return self.raw.tolist()  # torch's own refuses subclasses, which tensors of a real device aren't

    def __repr__(self) -> str:
        return f"SimTensor({self.raw})"


class SimModule:
    """The module that torch knows as `torch.sim`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: torch.device) -> None:
        """There is one."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Operations are over when they return."""

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the CPU's."""

    def _is_in_bad_fork(self) -> bool:
        return False


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Unwrap, compute on the CPU, wrap."""
    ours = _ours(operation, (args, kwargs))
    target, is_here = kwargs.get("device"), bool(ours)
    if target is not None:
        kwargs["device"], is_here = torch.device("cpu"), torch.device(target).type != "cpu"
    raw_args, raw_kwargs = pytree.tree_map_only(SimTensor, lambda tensor: tensor.raw, (args, kwargs))
    output = operation(*raw_args, **raw_kwargs)
    if operation is _aten.copy_.default:
        return args[0]

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        if (same := ours.get(id(tensor))) is not None:  # an operation in place
            return same
        return SimTensor(tensor) if is_here else tensor

    return pytree.tree_map_only(torch.Tensor, wrap, output)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    raw_source, raw_target = (each.raw if isinstance(each, SimTensor) else each for each in (source, target))
    raw_target.copy_(raw_source)
    return target


def _ours(operation: Any, inputs: Any) -> dict[int, SimTensor]:
    """The tensors of this device, by the identity of what they wrap."""
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    ours = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, SimTensor)}
    strangers = [tensor for tensor in tensors if not isinstance(tensor, SimTensor) and tensor.dim() > 0]
    if ours and strangers and operation not in _CROSSES_DEVICES:
        raise RuntimeError(f"{operation}: expected all tensors on one device, and one is on {strangers[0].device}.")
    return ours


_setup_privateuseone_for_python_backend("sim", SimModule())
_fallback = torch.library.Library("_", "IMPL")
_fallback.fallback(_run, "PrivateUse1")
# `torch.tensor(..., device="sim")` copies while Python's dispatch is off, where the fallback can't be called.
_copies = torch.library.Library("aten", "IMPL")
_copies.impl("_copy_from", _copy_from, "PrivateUse1")
