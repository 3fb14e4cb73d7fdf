"""Tensors that another rank has computed, of which this one knows the form alone."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves, tree_map

from core import ModuleError
from core_parallel.stages import forms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from core_parallel.stages.forms import TensorForm

_OF_FORM = frozenset(
    {
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_tensor",
    }
)
"""Functions of torch that need the form of a tensor, and none of its numbers."""

_TO_FORM = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})
"""Those that bring one tensor into the form of another."""

_OF_NUMBERS = frozenset(
    {
        "item",
        "tolist",
        "numpy",
        "equal",
        "allclose",
        "is_nonzero",
        "backward",
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__array__",
    }
)
_TO_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})
_OF_DEVICES = frozenset({"get_device", "device", "is_meta", "is_cpu", "is_cuda"})
_OF_GRAPHS = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})
_NO_WRITES = ("__index__", "__int__", "__invert__", "__iter__")


class HollowTensor(Tensor):
    """A tensor with a shape, a dtype and a device, and no numbers. What is computed with one is
    hollow too.

    To make numbers of it, or to write it into a tensor that is here, is an error.

    Attributes:
        own_device: of this rank.
        what: it is, in words.
    """

    own_device: torch.device
    what: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result, which is hollow; or here, where the form alone decides.

        Raises:
            ModuleError: the function needs numbers.
        """
        kwargs, name = kwargs or {}, func.__name__
        if name == "__get__":  # of an attribute
            name = func.__self__.__name__
        first = next(_hollow_in((args, kwargs)))
        target = kwargs.get("out", args[0] if args else None)
        is_into_real = isinstance(target, Tensor) and not isinstance(target, HollowTensor)
        if name in _OF_NUMBERS or (is_into_real and ("out" in kwargs or _writes(name))):
            raise _refusal(name, first)
        if name in _TO_DEVICES:
            return first
        if name == "__iter__":
            return iter(first.unbind())
        if name in _OF_DEVICES:
            return func(torch.empty(0, device=first.own_device))
        if name in _OF_GRAPHS:
            return func(torch.zeros((), requires_grad=True), *args[1:], **kwargs)
        if name in _OF_FORM or (is_into_real and name in _TO_FORM):
            args, kwargs = tree_map(_here, (args, kwargs))
            return func(*args, **kwargs)
        try:
            return tree_map(first.alike, _result_on_meta(func, args, kwargs))
        except NotImplementedError as error:  # torch's for a shape that follows from numbers
            raise _refusal(name, first) from error

    def alike(self, leaf: Any) -> Any:
        """A hollow tensor in place of one on meta; anything else as it is."""
        if not isinstance(leaf, Tensor) or isinstance(leaf, HollowTensor):
            return leaf
        with _without_modes():
            return _made(leaf, self.own_device, self.what)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's has an option
        return f"HollowTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> HollowTensor:
        """Itself."""
        return self


def make(form: TensorForm, device: torch.device, what: str) -> HollowTensor:
    """A hollow tensor.

    Args:
        form: of it.
        device: of this rank.
        what: it is, in words.
    """
    with _without_modes():
        return _made(forms.like(form), device, what)


def _made(on_meta: Tensor, device: torch.device, what: str) -> HollowTensor:
    made = on_meta.as_subclass(HollowTensor)
    made.own_device, made.what = device, what
    return made


def is_in(tree: Any) -> bool:
    """True if a tensor in a structure is hollow."""
    return any(True for _ in _hollow_in(tree))


def guard(named: Iterable[tuple[str, nn.Module]]) -> list[RemovableHandle]:
    """Make calls of modules with hollow tensors an error that names them: modules of no part, whose
    layers exchange with other ranks what they compute.
    """

    def refuse(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_in((args, kwargs)):
            raise ModuleError(
                f"{type(module).__name__} {name!r} was called between the parts of the pipeline, "
                "and has layers that are cut by tensor=, or experts: each rank has a piece of "
                "them. Name it among the parts, by pipeline() or parts=."
            )

    return [
        one.register_forward_pre_hook(partial(refuse, name), prepend=True, with_kwargs=True)
        for name, one in named
    ]


def _hollow_in(tree: Any) -> Iterator[HollowTensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, HollowTensor))


def _without_modes() -> AbstractContextManager[Any]:
    """A context in which nothing is followed, and nothing fake: there are no numbers."""
    return _disable_current_modes() if _get_current_dispatch_mode_stack() else nullcontext()


def _writes(name: str) -> bool:
    if name.startswith("__"):
        is_in_place = name.startswith("__i") and name not in _NO_WRITES
        return is_in_place or name in ("__setitem__", "__set__")
    return name.endswith("_")


def _refusal(name: str, hollow: HollowTensor) -> ModuleError:
    return ModuleError(
        f"{name} needs the numbers of {hollow.what}, or of what was made of it, and another rank "
        "of the pipeline has them: this one knows their shape. Compute that in a part, which is "
        "given what the part before returned; or return it with the model's result."
    )


def _here(leaf: Any) -> Any:
    """A tensor of the same form on this rank's device, which needs no memory."""
    if not isinstance(leaf, HollowTensor):
        return leaf
    return torch.empty((), dtype=leaf.dtype, device=leaf.own_device).expand(tuple(leaf.shape))


def _result_on_meta(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad(), _without_modes():
        args, kwargs = tree_map(_on_meta, (args, kwargs))
        if func is Tensor.to:
            args = tuple("meta" if isinstance(one, str) else one for one in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    if not isinstance(leaf, Tensor) or isinstance(leaf, HollowTensor):
        return leaf
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
