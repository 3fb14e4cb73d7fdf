"""The check that a module's own forward is its parts, one after the other: both are run on meta,
and compared.
"""

from __future__ import annotations

import operator
import random
import weakref
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from core import ModuleError
from core_parallel.modules import absent, forwards
from core_parallel.modules.compiled_parts import uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_parallel.stages.layout import Layout


def check(
    layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any], called: nn.Module | None = None
) -> None:
    """Refuse parts that don't make up `forward`, by the operations of both. What can't run on meta
    isn't compared.

    Args:
        layout: the module and its parts.
        args: the first call's arguments.
        kwargs: the first call's named arguments.
        called: the module in `layout.cut.called` that was called.

    Raises:
        ModuleError: with the first operation that differs, or how the parts end.
    """
    module = called or layout.module
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        applied = [part for stage in layout.cut.stages for part in stage]
        if len(applied) == len(module) and all(map(operator.is_, applied, module)):
            return
    args, kwargs = tree_map(_on_meta, (args, kwargs))
    _compare(layout, module, args, kwargs)
    if module.training:
        with _lowest_draws():
            _compare(layout, module, args, kwargs)


@contextmanager
def _lowest_draws() -> Iterator[None]:
    """A context in which `random.random()` is 0: what is left out by such a draw, as a layer is, is
    left out now.
    """
    drawn, random.random = random.random, float
    try:
        yield
    finally:
        random.random = drawn


def _compare(
    layout: Layout, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        with forwards.replaced(dict.fromkeys(layout.cut.called)):
            whole = _operations(module, None, args, kwargs)
    except Exception:  # such as a step that looks at numbers, of which there are none on meta
        return
    whole.refuse_kept(module)
    try:
        folded = _operations(module, layout.fold, args, kwargs)
    except Exception as error:
        raise ModuleError(
            f"{type(module).__name__}.forward isn't its parts one after the other, which end in a "
            f"{type(error).__name__}: {str(error).rstrip('.')}. Each part is given what the one "
            "before returned, and nothing else. Name parts that make up all of forward, in its "
            "order; what goes beside is returned with the result."
        ) from error
    for expected, found in zip_longest(
        whole.operations, folded.operations, fillvalue="nothing more"
    ):
        if expected != found:
            raise ModuleError(
                f"{type(module).__name__}.forward isn't its parts one after the other: at the "
                f"first difference forward computes {expected}, and the parts {found}. Name parts "
                "that make up all of forward, in its order: what it does between two modules can "
                "be a function among them."
            )


def _operations(
    module: nn.Module,
    forward: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Recorder:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    on_meta = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in tensors.items()
    }
    recorder = _Recorder({id(tensor): repr(name) for name, tensor in on_meta.items()})
    parts = module.modules() if any(isinstance(one, DTensor) for one in tensors.values()) else ()
    with (
        forwards.replaced({module: forward}),
        forwards.without_hooks(parts),
        absent.inspecting(),
        torch.no_grad(),
        uncompiled(),
        recorder,
    ):
        functional_call(module, on_meta, args, kwargs)
    return recorder


class _Recorder(TorchDispatchMode):
    """Notes each operation, the parameters and buffers that it takes, and the shapes of its
    results.

    Args:
        names: of these, by their identities.
    """

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._names = names
        self.operations: list[str] = []
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one."""
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._made += [weakref.ref(leaf) for leaf in made if leaf.is_meta]
        shapes = [tuple(leaf.shape) for leaf in made]
        own = [
            self._names[id(leaf)] for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._names
        ]
        of = f" of {', '.join(own)}" if own else ""
        self.operations.append(f"{func}{of} to {', '.join(map(str, shapes))}")
        return result

    def refuse_kept(self, module: nn.Module) -> None:
        """Refuse what is still there after the forward, and no attribute of a module."""
        own = {id(leaf) for part in module.modules() for leaf in tree_leaves(vars(part))}
        kept = [one for ref in self._made if (one := ref()) is not None and id(one) not in own]
        if kept:
            raise ModuleError(
                f"{type(module).__name__} keeps a tensor of shape {tuple(kept[0].shape)} elsewhere "
                "than in its result: in a list, or by a hook. Each rank of a pipeline would have "
                "those of its own parts, of one microbatch after the other. Return it with the "
                "result, through the parts behind; or keep numbers."
            )


def _on_meta(leaf: Any) -> Any:
    return (
        torch.empty_like(leaf, device="meta", requires_grad=False)
        if isinstance(leaf, Tensor)
        else leaf
    )
