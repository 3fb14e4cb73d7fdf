"""One floating-point format for everything: parameters, buffers, inputs and what the user's step
creates.

In 16 bits a module may keep some of its tensors in float32.
"""

from __future__ import annotations

import logging
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contract.errors import ConfigurationError, ModuleError
from core.contract.precision import NumberFormats, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from torch import Tensor

_log = logging.getLogger(__name__)
# Models that are written for 16 bits list patterns of names under these attributes, as those of
# Hugging Face do.
_LISTS = {
    torch.float16: ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"),
    torch.bfloat16: ("_keep_in_fp32_modules_strict",),
}
_NAMES = {torch.float64: "64-true", torch.float16: "16-true", torch.bfloat16: "bf16-true"}


class UniformPrecision(Precision):
    """One dtype for all floating-point tensors. Complex and integer tensors stay as they are.

    In 16 bits, what a module keeps in float32 stays so, as `kept_in_float32` finds it.

    The default dtype is set while modules are built and while the user's step runs, so that a
    `torch.zeros(3)` in it fits the rest. That costs one or two microseconds a step, and saves
    errors (or silent float32 in a float64 run). Nothing scales the loss: in float16, small
    gradients vanish. `"16-mixed"` is the one that takes care of them.

    Args:
        dtype: `torch.float64`, `torch.float16` or `torch.bfloat16`.
    """

    _strategy: Any = None

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in _NAMES:
            raise ConfigurationError(
                f"UniformPrecision({dtype}): expected one of {', '.join(map(str, _NAMES))}. "
                "For float32 leave the precision out."
            )
        self.dtype = dtype
        self.name = _NAMES[dtype]
        self.formats = NumberFormats(parameter=dtype, compute=dtype, reduce=dtype, buffer=dtype)

    def connect(self, strategy: Any) -> None:
        """Refuse float64 on mps by a `ConfigurationError`; see `Precision.connect`."""
        self._strategy = strategy
        kinds = {device.type for device in getattr(strategy, "parallel_devices", ())}
        if self.dtype == torch.float64 and "mps" in kinds:
            raise ConfigurationError(
                "precision='64-true': Apple's GPUs have no float64. Use accelerator='cpu' for it."
            )

    def init_context(self) -> DefaultDtype:
        """A context in which new tensors get the dtype. May be entered repeatedly, and inside
        itself.
        """
        return DefaultDtype(self.dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Cast parameters and buffers, in place: each stays the same object. Those kept in float32
        get that.

        Raises:
            ModuleError: `keep_in_float32` of a module in it names nothing.
        """
        kept = kept_in_float32(module, self.dtype)
        if kept and getattr(self._strategy, "is_global_zero", True):
            _log.info(
                "%s keeps %d tensors in float32: %s.",
                self.name,
                len(kept),
                ", ".join(list(kept)[:8]),
            )
        tensors = [*kept.values(), *(one.grad for one in kept.values() if one.grad is not None)]
        in_float32 = {id(one) for one in tensors}

        def convert(tensor: Tensor) -> Tensor:
            # A complex one would lose its imaginary part.
            if not tensor.is_floating_point():
                return tensor
            if id(tensor) in in_float32:
                return tensor.float()
            return tensor.to(self.dtype)

        if all(convert(tensor) is tensor for tensor in (*module.parameters(), *module.buffers())):
            # torch would replace sharded ones, and can't while an optimizer refers to them
            return module
        converted: nn.Module = module._apply(convert)
        return converted

    def forward_context(self, device_type: str) -> DefaultDtype:
        """The user's step runs with the dtype as the default one."""
        return DefaultDtype(self.dtype)

    def convert_input(self, data: Any) -> Any:
        """Cast one floating-point tensor of a batch."""
        if not data.is_floating_point():
            return data
        return data.to(self.dtype)


def kept_in_float32(module: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Parameters and buffers, by name, that are float32 where others get a format of 16 bits; none
    for other formats.

    - buffers in float32 that no state has, such as the frequencies of rotary positions;
    - what a model lists in `_keep_in_fp32_modules_strict`, and for float16 in
      `_keep_in_fp32_modules`; and if such a model was made in the format, what its own layers hold
      in float32 all the same;
    - what a module names: `keep_in_float32 = ("*.router",)`, patterns of names within it, of
      modules or tensors.

    Raises:
        ModuleError: such a pattern fits no name.
    """
    kept: dict[str, Tensor] = {}
    unknown: dict[str, str] = {}
    if dtype is None or dtype not in _LISTS:
        return kept
    for path, part in module.named_modules():
        found = {}
        for name, buffer in part.named_buffers(recurse=False):
            if name in part._non_persistent_buffers_set and buffer.dtype == torch.float32:
                found[name] = buffer
        if hasattr(part, "_keep_in_fp32_modules_strict"):
            found.update(_of_model(part, dtype))
        patterns = getattr(part, "keep_in_float32", ())
        if isinstance(patterns, str):
            patterns = [patterns]
        for pattern in patterns:
            named = {name: one for name, one in _floating(part) if _fits(name, pattern)}
            found |= named
            if not named:
                unknown[pattern] = type(part).__name__
        for name, one in found.items():
            kept[_joined(path, name).replace("_orig_mod.", "")] = one
    for pattern, owner in unknown.items():
        if not any(_fits(name, f"*{pattern}") for name in kept):
            raise ModuleError(
                f"keep_in_float32 of {owner} has {pattern!r}, and it has no module or tensor of "
                "such a name. Correct it: '*.router' fits each module of this name that is in "
                "another one."
            )
    return kept


def _of_model(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    lists = [pattern for name in _LISTS[dtype] for pattern in getattr(model, name, None) or ()]
    expression = re.compile("|".join(lists).replace("*", ".*"))
    is_made_so = any(one.dtype == dtype for one in model.parameters())
    package = type(model).__module__.partition(".")[0]
    for path, part in model.named_modules():
        is_own = is_made_so and type(part).__module__.partition(".")[0] == package
        for name, one in _floating(part, recurse=False):
            full = _joined(path, name)
            is_listed = (lists and expression.search(full)) or (
                is_own and one.dtype == torch.float32
            )
            if is_listed and name not in part._non_persistent_buffers_set:
                yield full, one


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix(".")


def _floating(module: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    named = [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]
    return ((name, one) for name, one in named if one.is_floating_point())


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


class DefaultDtype:
    """Sets torch's default dtype; may be entered repeatedly, and inside itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._previous: list[torch.dtype] = []

    def __enter__(self) -> None:
        self._previous.append(torch.get_default_dtype())
        torch.set_default_dtype(self.dtype)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.set_default_dtype(self._previous.pop())


def single() -> Precision:
    """`32-true`: modules and batches stay as they are, which is float32 unless the user chose
    otherwise.
    """
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
