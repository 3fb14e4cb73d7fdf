"""A context in which marks are followed from operation to operation, while these run."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import follows, refuse
from core_parallel.following import doubts, lengths, rules
from core_parallel.following.marks import Mark, Mixed, PartAlong, mark_of, place_of, put
from core_parallel.modules import own_draws
from core_parallel.modules.parted_tensor import PartedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from torch import nn
    from torch.utils.hooks import RemovableHandle

_TO_NUMBERS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.is_nonzero)
_AROUND = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__array__))
_ONE_HOT = functional.one_hot
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # a descriptor
_active = threading.local()


def is_in_backward() -> bool:
    """True where gradients are what is computed: autograd knows the way back."""
    return torch._C._current_graph_task_id() != -1


def _is_whole_in_inference(func: Any) -> bool:
    """True for an operation that is made of others, and that torch takes apart before a mode sees
    it, but in inference mode.
    """
    return (
        torch.is_inference_mode_enabled()
        and isinstance(func, OpOverload)
        and func.has_kernel_for_dispatch_key(_COMPOSITE)
    )


def _draws(func: Any) -> bool:
    return isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


class _Reads(TorchFunctionMode):
    """A context in which what reads a tensor without an operation counts too, and its sizes."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs, axis = kwargs or {}, self._following.axis
        if self._following.depth:
            return func(*args, **kwargs)
        if func in _AROUND:
            self._following.refuse_numbers(args[:1])
        # which looks at numbers, to see that they are in bounds
        with set_aside() if func is _ONE_HOT else nullcontext():
            result = func(*args, **kwargs)
        if func is _ONE_HOT or func == _DATA:
            put([result], axis, mark_of(args[0], axis))
        else:
            self._following.note(func, args, result)
        return lengths.of(axis, func, args, kwargs, result)


class Following(TorchDispatchMode):
    """Operations run as without it, once; their results are marked.

    Args:
        axis: of the mesh, along which ranks have parts.
        why: what stands behind an error's first sentence.
        arrived: how a tensor lies that another rank has sent, which has computed it in a stage.
        followed: what that is, in words; the axis by default.

    Attributes:
        depth: number of functions under way of which it is known otherwise how their results lie.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        axis: str,
        why: str,
        arrived: Callable[[Tensor], Mark] = lambda tensor: None,
        followed: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.axis, self.why, self.arrived, self.depth = axis, why, arrived, 0
        self._reads = _Reads(self)
        self._followed, self._is_proven = followed or axis, False

    def __enter__(self) -> Self:
        self._is_proven = follows(self._followed)
        _modes().append(self)
        self._reads.__enter__()  # type: ignore[no-untyped-call]  # torch's
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        self._reads.__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        _modes().remove(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation's result."""
        kwargs = kwargs or {}
        if self.depth or is_in_backward():
            return func(*args, **kwargs)
        if self._is_proven:
            doubts.note(self.axis, (args, kwargs))
        if _is_whole_in_inference(func):
            return self._in_parts(func, args, kwargs)
        if getattr(func, "overloadpacket", None) in _TO_NUMBERS:
            self.refuse_numbers(args)
        result = func(*args, **kwargs)
        is_written = isinstance(func, OpOverload) and func._schema.is_mutable
        # some return nothing, and have written into their first argument
        written = args if is_written and result is None else result
        results = [one for one in tree_leaves(written) if isinstance(one, Tensor)]
        mark = self.result_of(func, args, kwargs, results)
        if mark is None and self.axis == "tensor" and own_draws.is_open() and _draws(func):
            mark = Mixed(str(func), draws=True)
        put(results, self.axis, mark)
        if isinstance(func, OpOverload) and func.is_view and torch.is_inference_mode_enabled():
            for one in results:  # for which torch knows no base then
                one._core_parallel_base = getattr(args[0], "_core_parallel_base", args[0])  # type: ignore[attr-defined]  # ours
        if mark is not None and is_written:
            self._mark_bases(results, mark)
        return result

    def result_of(self, func: Any, args: Any, kwargs: Any, results: list[Tensor]) -> Any:
        """How the results of an operation lie; see `rules.result_of`."""
        return rules.result_of(self.axis, func, args, kwargs, results)

    def note(self, func: Any, args: Any, result: Any) -> None:
        """Note what one of torch's functions has done: one that computes with a size of a part
        mixes.
        """
        if lengths.takes_one(func, args):
            put([result], self.axis, Mixed(f"{func.__name__} with a size of its part"))

    def _in_parts(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The result of an operation that is made of others, which are followed."""
        TorchDispatchMode.__enter__(self)
        try:
            return func._op_dk(_COMPOSITE, *args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _mark_bases(self, written: list[Tensor], mark: Mark) -> None:
        """Mark what tensors are views of, into which an operation has written through them."""
        for one in written:
            base = getattr(one, "_core_parallel_base", one._base)
            if base is not None:
                fits = (
                    isinstance(mark, PartAlong)
                    and base.ndim == one.ndim
                    and base.shape[mark.dim] == one.shape[mark.dim]
                )
                put([base], self.axis, mark if fits else Mixed("a write into a part"))

    def refuse_numbers(self, given: Any) -> None:
        """Refuse to make numbers of tensors that have a mark."""
        for one in tree_leaves(given):
            if mark_of(one, self.axis) is not None:
                text = (
                    "A number was made of a tensor of which each rank has its own part, or values "
                    f"of its own: it is another one on each rank. {self.why}"
                )
                refuse(ModuleError(text), axis=self.axis)


def _modes() -> list[Following]:
    """Those of this thread, the innermost last."""
    found: list[Following] = vars(_active).setdefault("modes", [])
    return found


def is_followed(axis: str) -> bool:
    """True within a `Following` along that axis, in this thread."""
    return any(one.axis == axis for one in _modes())


def arrive(tensors: Iterable[Any]) -> None:
    """Mark what another rank has sent, as it passed `leave`."""
    for mode in _modes():
        for one in tensors:
            if isinstance(one, Tensor):
                put([one], mode.axis, mode.arrived(one))


def leave(tensors: Iterable[Any]) -> None:
    """Before tensors go to another rank.

    Raises:
        ModuleError: one of them doesn't lie as the other rank takes it to.
    """
    for mode in _modes():
        for one in tensors:
            mark = mark_of(one, mode.axis)
            if mark is not None and mark != mode.arrived(one):
                text = (
                    "A stage returns a tensor of which each rank has values of its own: "
                    f"{mark}. {mode.why}"
                )
                refuse(ModuleError(text), axis=mode.axis, place=place_of(mark))


@contextmanager
def set_aside() -> Iterator[None]:
    """A context in which nothing is followed, in this thread: how its results lie is known
    otherwise, or it is none of the model's.
    """
    modes = _modes()
    stack = _get_current_dispatch_mode_stack() if modes else []
    # Without a mode torch takes the kernels that it takes when backward computes this again.
    modes = modes if modes and stack[-len(modes) :] == modes else []
    for one in reversed(modes):
        TorchDispatchMode.__exit__(one, None, None, None)
    try:
        yield
    finally:
        for one in modes:
            TorchDispatchMode.__enter__(one)


def by_row(module: nn.Module, axis: str) -> Iterator[RemovableHandle]:
    """Hooks of a module that treats each row by itself: its result lies as its first argument."""
    calls: list[tuple[Following, Mark]] = []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        mode = next(one for one in _modes() if one.axis == axis)
        mode.depth += 1
        calls.append((mode, mark_of([*args, *kwargs.values()][0], axis)))

    def end(module: nn.Module, args: Any, output: Any) -> None:
        mode, mark = calls.pop()
        mode.depth -= 1
        while isinstance(output, PartedTensor):
            output = output.local()
        put([output], axis, mark)

    yield module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
    yield module.register_forward_hook(end, always_call=True)
