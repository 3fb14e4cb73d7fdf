"""Tensors of a device that is written in Python: each wraps one on the CPU, on which every
operation runs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
# These take tensors of two devices, as on any other kind of device.
_CROSSES_DEVICES = {
    _aten.copy_.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
_libraries: list[torch.library.Library] = []


class HostTensor(torch.Tensor):
    """A tensor on `place`, of the same shape and dtype as the one that it wraps. A device derives
    its own.
    """

    place: ClassVar[torch.device]
    raw: torch.Tensor

    @staticmethod
    def __new__(cls: type[Self], raw: torch.Tensor) -> Self:
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), dtype=raw.dtype, device=cls.place, **layout
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.run(operation, *args, **(kwargs or {}))

    # With these two, a module that moves to the device swaps parameters and keeps their identity.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @classmethod
    def __tensor_unflatten__(
        cls, tensors: dict[str, torch.Tensor], context: None, size: Any, stride: Any
    ) -> Self:
        return cls(tensors["raw"])

    def tolist(self) -> Any:
        # torch's own refuses subclasses, which tensors of a real device aren't
        return self.raw.tolist()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw})"

    @classmethod
    def register(cls, key: str) -> None:
        """Have torch call this class for a dispatch key, such as "PrivateUse1", in this process,
        for good.
        """
        fallback = torch.library.Library("_", "IMPL")
        fallback.fallback(cls.run, key)
        # A tensor that is made of a list is copied while Python's dispatch is off, where the
        # fallback can't be called.
        copies = torch.library.Library("aten", "IMPL")
        copies.impl("_copy_from", _copy_from, key)
        _libraries.extend((fallback, copies))

    @classmethod
    def run(cls, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Unwrap, compute on the CPU, wrap."""
        ours = cls._ours(operation, (args, kwargs))
        target, is_here = kwargs.get("device"), bool(ours)
        if target is not None:
            kwargs["device"], is_here = torch.device("cpu"), torch.device(target).type != "cpu"
        raw_args, raw_kwargs = pytree.tree_map_only(cls, lambda tensor: tensor.raw, (args, kwargs))
        output = operation(*raw_args, **raw_kwargs)
        if operation is _aten.copy_.default:
            return args[0]

        def wrap(tensor: torch.Tensor) -> torch.Tensor:
            if (same := ours.get(id(tensor))) is not None:  # an operation in place
                return same
            return cls(tensor) if is_here else tensor

        return pytree.tree_map_only(torch.Tensor, wrap, output)

    @classmethod
    def _ours(cls, operation: Any, inputs: Any) -> dict[int, HostTensor]:
        """The tensors of this device, by the identity of what they wrap."""
        tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        ours = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, cls)}
        strangers = [
            tensor for tensor in tensors if not isinstance(tensor, cls) and tensor.dim() > 0
        ]
        if ours and strangers and operation not in _CROSSES_DEVICES:
            raise RuntimeError(
                f"{operation}: expected all tensors on one device, and one is on "
                f"{strangers[0].device}."
            )
        return ours


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    raw_source, raw_target = (
        each.raw if isinstance(each, HostTensor) else each for each in (source, target)
    )
    raw_target.copy_(raw_source)
    return target
