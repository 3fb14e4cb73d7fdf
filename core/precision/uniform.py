"""One floating-point format for everything: parameters, buffers, inputs and what the user's step creates."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contract.errors import ConfigurationError
from core.contract.precision import NumberFormats, Precision

if TYPE_CHECKING:
    from types import TracebackType


# Not `module.to(dtype)`: it would cast complex parameters as well, and lose their imaginary part.
_CONVERSIONS = MappingProxyType(
    {torch.float64: nn.Module.double, torch.float16: nn.Module.half, torch.bfloat16: nn.Module.bfloat16}
)
_NAMES = MappingProxyType({torch.float64: "64-true", torch.float16: "16-true", torch.bfloat16: "bf16-true"})


class UniformPrecision(Precision):
    """One dtype for all floating-point tensors. Complex and integer tensors stay as they are.

    The default dtype is set while modules are built and while the user's step runs, so that a `torch.zeros(3)` in it
    fits the rest. That costs one or two microseconds a step, and saves errors (or silent float32 in a float64 run).
    Nothing scales the loss: in float16, small gradients vanish. `"16-mixed"` is the one that takes care of them.

    Args:
        dtype: `torch.float64`, `torch.float16` or `torch.bfloat16`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in _CONVERSIONS:
            raise ConfigurationError(
                f"UniformPrecision({dtype}): expected one of {', '.join(map(str, _CONVERSIONS))}. "
                "For float32 leave the precision out."
            )
        self.dtype = dtype
        self.name = _NAMES[dtype]
        self.formats = NumberFormats(parameter=dtype, compute=dtype, reduce=dtype, buffer=dtype)

    def connect(self, strategy: object) -> None:
        """Refuse float64 on mps by a `ConfigurationError`; see `Precision.connect`."""
        if self.dtype == torch.float64 and "mps" in (each.type for each in getattr(strategy, "parallel_devices", ())):
            raise ConfigurationError("precision='64-true': Apple's GPUs have no float64. Use accelerator='cpu' for it.")

    def init_context(self) -> DefaultDtype:
        """A context in which new tensors get the dtype. May be entered repeatedly, and inside itself."""
        return DefaultDtype(self.dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Cast parameters and buffers, in place: each stays the same object."""
        return _CONVERSIONS[self.dtype](module)

    def forward_context(self, device_type: str) -> DefaultDtype:
        """The user's step runs with the dtype as the default one."""
        return DefaultDtype(self.dtype)

    def convert_input(self, data: Any) -> Any:
        """Cast one floating-point tensor of a batch."""
        return data.to(self.dtype) if data.is_floating_point() else data


class DefaultDtype:
    """Sets torch's default dtype; may be entered repeatedly, and inside itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._previous: list[torch.dtype] = []

    def __enter__(self) -> None:
        self._previous.append(torch.get_default_dtype())
        torch.set_default_dtype(self.dtype)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_default_dtype(self._previous.pop())


def single() -> Precision:
    """`32-true`: modules and batches stay as they are, which is float32 unless the user chose otherwise."""
    return Precision()


def double() -> Precision:
    """`64-true`: all floating-point tensors are float64."""
    return UniformPrecision(torch.float64)


def float16() -> Precision:
    """`16-true`: all floating-point tensors are float16. The loss isn't scaled."""
    return UniformPrecision(torch.float16)


def bfloat16() -> Precision:
    """`bf16-true`: all floating-point tensors are bfloat16."""
    return UniformPrecision(torch.bfloat16)
