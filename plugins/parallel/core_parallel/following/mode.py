"""A context in which marks are followed from operation to operation, while these run."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
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
from core_parallel.following.operations import Operation
from core_parallel.modules import own_draws
from core_parallel.modules.given_tensors import tensors_in
from core_parallel.modules.parted_tensor import local_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True)
class _Kind:
    """The kind of an operation, which is known before it is called.

    Attributes:
        is_composite: it is made of others, and torch takes it apart before a mode sees it, but in
            inference mode.
        makes_numbers: of tensors.
        draws: random numbers.
        is_view: its result is a view of its first argument.
        writes: into an argument.
    """

    is_composite: bool = False
    makes_numbers: bool = False
    draws: bool = False
    is_view: bool = False
    writes: bool = False


@cache
def _kind_of(func: Any) -> _Kind:
    if not isinstance(func, OpOverload):
        return _Kind()
    return _Kind(
        is_composite=func.namespace != "prim" and func.has_kernel_for_dispatch_key(_COMPOSITE),
        makes_numbers=func.overloadpacket in _TO_NUMBERS,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        is_view=func.is_view,
        writes=func._schema.is_mutable,
    )


class _Reads(TorchFunctionMode):
    """A context in which what reads a tensor without an operation counts too, and its sizes."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs, following = kwargs or {}, self._following
        is_plain = func not in following.noted and not lengths.has_one(args, following.axis)
        if is_plain or following.depth:
            return func(*args, **kwargs)
        axis = following.axis
        if func in _AROUND:
            following.refuse_numbers(args[:1])
        # which looks at numbers, to see that they are in bounds
        with set_aside() if func is _ONE_HOT else nullcontext():
            result = func(*args, **kwargs)
        if func is _ONE_HOT or func == _DATA:
            put([result], axis, mark_of(args[0], axis))
        else:
            following.note(func, args, result)
        return lengths.of(axis, func, args, kwargs, result)


class Following(TorchDispatchMode):
    """Operations run as without it, once; their results are marked.

    Args:
        axis: of the mesh, along which ranks have parts.
        why: what stands behind an error's first sentence.
        arrived: how a tensor lies that another rank has sent, which has computed it in a stage.
        group: the ranks along that axis; None where no exchange between them is followed.
        followed: what that is, in words; the axis by default.

    Attributes:
        depth: number of functions under way of which it is known otherwise how their results lie.
        noted: functions that read a tensor without an operation, or its sizes.
    """

    supports_higher_order_operators = True
    noted = lengths.READS | _AROUND | {_ONE_HOT, _DATA}

    def __init__(
        self,
        axis: str,
        why: str,
        arrived: Callable[[Tensor], Mark] = lambda tensor: None,
        group: Any = None,
        followed: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.axis, self.why, self.arrived, self.depth = axis, why, arrived, 0
        self.group = group
        self._reads = _Reads(self)
        self._followed, self._is_proven = followed or axis, False

    def __enter__(self) -> Self:
        self._is_proven = follows(self._followed)
        if not is_followed(self.axis):
            lengths.noted(self.axis).clear()
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
        given = tensors_in((*args, *kwargs.values()))
        if self._is_proven:
            doubts.note(self.axis, given)
        kind, infers = _kind_of(func), torch.is_inference_mode_enabled()
        if kind.is_composite and infers:
            return self._in_parts(func, args, kwargs)
        if kind.makes_numbers:
            self.refuse_numbers(args)
        result = func(*args, **kwargs)
        mark: Any = None
        if self.has_marked(given):
            # some return nothing, and have written into their first argument
            written = args if kind.writes and result is None else [result]
            call = Operation(func, args, kwargs, given, tensors_in(written))
            mark = self._put_marks(call, writes=kind.writes)
        if mark is None and kind.draws and self.axis == "tensor" and own_draws.is_open():
            put(tensors_in([result]), self.axis, Mixed(str(func), draws=True))
        if kind.is_view and infers:  # for which torch knows no base then
            base = getattr(args[0], "_core_parallel_base", args[0])
            for one in tensors_in([result]):
                one._core_parallel_base = base  # type: ignore[attr-defined]  # ours
        return result

    def has_marked(self, given: Sequence[Tensor]) -> bool:
        """True if the marks of an operation's results are to be found, by its arguments."""
        return any(mark_of(one, self.axis) is not None for one in given)

    def _put_marks(self, call: Operation, *, writes: bool) -> Any:
        """Mark the results of an operation with marked arguments."""
        mark = self.result_of(call)
        put(call.results, self.axis, mark)
        if mark is not None and writes:
            self._mark_bases(call.results, mark)
        return mark

    def result_of(self, call: Operation) -> Any:
        """How the results of an operation lie; see `rules.result_of`."""
        return rules.result_of(self.axis, call)

    def note(self, func: Any, args: Any, result: Any) -> None:
        """Note what one of torch's functions has done: one that computes with a size of a part
        mixes.
        """
        if lengths.takes_one(func, args, self.axis):
            put([result], self.axis, Mixed(f"{func.__name__} with a size of its part"))

    def _in_parts(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The result of an operation that is made of others, which are followed."""
        TorchDispatchMode.__enter__(self)
        try:
            return func._op_dk(_COMPOSITE, *args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _mark_bases(self, written: Sequence[Tensor], mark: Mark) -> None:
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


def _at_work() -> list[Following]:
    """Those that don't know otherwise how the results lie of what runs."""
    return [one for one in _modes() if not one.depth]


def is_followed(axis: str) -> bool:
    """True within a `Following` along that axis, in this thread."""
    return any(one.axis == axis for one in _modes())


def followed_over(group: Any) -> list[str]:
    """The axes along which ranks of a group are followed, in this thread, in forward."""
    modes = [] if is_in_backward() else _at_work()
    return [one.axis for one in modes if one.group is group]


def follow_over(axis: str, group: Any) -> None:
    """Follow the exchanges between the ranks of a group along that axis, in this thread."""
    for one in _modes():
        if one.axis == axis:
            one.group = group


def arrive(tensors: Sequence[Any]) -> None:
    """Mark what another rank has sent, as it passed `leave`."""
    for mode in _at_work():
        for one in tensors:
            if isinstance(one, Tensor):
                put([one], mode.axis, mode.arrived(one))


def leave(tensors: Sequence[Any]) -> None:
    """Before tensors go to another rank.

    Raises:
        ModuleError: one of them doesn't lie as the other rank takes it to.
    """
    for mode in _at_work():
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
    calls: list[tuple[Following | None, Mark]] = []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        mode = next((one for one in _modes() if one.axis == axis), None)
        calls.append((mode, mark_of([*args, *kwargs.values()][0], axis)))
        if mode is not None:
            mode.depth += 1

    def end(module: nn.Module, args: Any, output: Any) -> None:
        mode, mark = calls.pop()
        if mode is None:
            return
        mode.depth -= 1
        put([local_of(output)], axis, mark)

    yield module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
    yield module.register_forward_hook(end, always_call=True)
