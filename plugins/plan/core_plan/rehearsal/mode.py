"""Runs operations on shapes alone, counts the memory that they would take, and what is handed to
other ranks.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]  # not in its stub
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from core.contract import doubt, users_line
from core_plan.rehearsal.known_shapes import KnownShapes
from core_plan.rehearsal.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FAKE = torch._C._TorchDispatchModeKey.FAKE

_REAL_BYTES = {True: 4096, False: 2**24}
"""A tensor made of nothing is real up to this size: of floats, such as a rank's vote, and of
integers, by which a program decides what it does."""

_SENT_BYTES = 2**16
"""Between real ranks a tensor of at most this size is sent, such as a pickled object or a loss; of
one without values, ones, as `_assume` takes them to be. Both sides know the size."""

_HANDED = ("tensors", "tensor", "inputs", "input", "input_tensors", "input_tensor")
"""The arguments of a collective that hold what this rank gives."""

_LOSSES = {
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.binary_cross_entropy.default,
}
_LARGER = {*_LOSSES, torch.ops.aten.mkldnn_rnn_layer.default}
"""Operations whose results have more memory than their shapes say."""

_WITHOUT_MESSAGE = {
    "wait_tensor",
    "wrap_tensor_autograd",
    "barrier",
    "monitored_barrier",
    "recv",
    "recv_any_source",
}


_OF_TWO = {"wait_tensor", "wrap_tensor_autograd", "send", "recv", "recv_any_source"}
"""Operations that not all ranks of a group call alike."""

_UNLIKE = ("alltoall", "all_to_all", "gather", "scatter")
"""Beginnings of operations to which ranks may give tensors of other sizes."""


class Rehearsal(TorchDispatchMode):
    """While it is entered, large tensors have no memory. Autograd and modules notice nothing.

    A tensor that is made of nothing is real if it is small, or if no module makes it: the user's
    data stays. What is computed with a tensor without memory is one, too.

    Attributes:
        ledger: the memory that the tensors would take.
        sent: bytes that this rank has handed to collectives, by (operation, group).
        exchanges: if they are kept: each with the operation, the shapes handed, the group and the
            user's line.
        receives: groups that aren't there, in which something was to come from one rank.
        assumed: places in the user's code where a value was asked for that nobody has, and what was
            taken for it.
        counts: whether `ledger` counts.
        num_operations: that have run.
    """

    def __init__(self, has_peers: bool = False, is_real: bool = False) -> None:
        """Not entered.

        Args:
            has_peers: the process group is a real one, whose other ranks rehearse too.
            is_real: tensors have memory as ever, and are only counted.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._has_peers, self._is_real = has_peers, is_real
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._shapes = KnownShapes(self.fake)
        self.ledger = Ledger()
        self.sent: Counter[tuple[str, str]] = Counter()
        self.exchanges: list[tuple[str, str, str, str]] | None = None
        self.receives: dict[str, None] = {}
        self.assumed: dict[str, None] = {}
        self.counts = False
        self._workspaces: dict[Any, list[int]] = {}
        self.num_operations = 0
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def weightless(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape, strides and dtype on the CPU, without memory."""
        if self._is_real or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor  # without memory already, or made of such
        with self.fake:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            # as nn.Parameter does, whose is a view here
            made.requires_grad_(tensor.requires_grad)._is_param = True
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(one) for one in types):
            return NotImplemented  # a DTensor: its own operations on local tensors come next
        if func is torch.ops.prim.device.default:  # more than half of all calls
            return func(*args)
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(_FAKE) is not None:
            # DTensor asks for the shapes of whole tensors, which nobody has
            return func(*args, **kwargs)
        if str(kwargs.get("device")) == "meta":
            # shapes alone are asked for, as by DTensor
            return tree_map(_bare, func(*args, **kwargs))
        given = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        is_fake = any(isinstance(tensor, FakeTensor) for tensor in given)
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count_sent(func, args, kwargs)
            result = self._exchange(func, args, kwargs, given, is_fake)
        elif is_fake and func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.item.default,
        ):
            return self._assume(given[0])
        elif is_fake and func is torch.ops.aten.equal.default:
            if _is_asked_by_user():
                doubt("Two tensors were taken to be equal: what follows otherwise wasn't run.")
            return True
        elif is_fake and func is torch.ops.aten.nonzero.default:
            result = self._places(given[0])
        elif not given and not self._is_real:
            result = self._create(func, args, kwargs)
        else:
            result = self._run(func, args, kwargs)
            if is_fake:
                self._know(func, args, kwargs, result)
        self.num_operations += 1
        if self.counts:
            in_backward = torch._C._current_graph_task_id() != -1
            for tensor in _tensors_in((result,)):
                self.ledger.see(tensor, in_backward)
            if is_fake and func in _LARGER and not (func in _LOSSES and result.ndim):
                self._enlarge(func, args, kwargs, result)
        return result

    def _exchange(
        self, func: Any, args: Any, kwargs: Any, given: Sequence[torch.Tensor], is_fake: bool
    ) -> Any:
        has_peers = self._has_peers and func.namespace == "c10d" and _is_met(_group_in(args))
        if func.namespace != "c10d" or self._is_real or (not is_fake and not has_peers):
            return func(*args, **kwargs)
        if not has_peers or any(tensor.nbytes > _SENT_BYTES for tensor in given):
            return _unsent(func, args)
        real_args, real_kwargs = tree_map(_with_values, (args, kwargs))
        result = func(*real_args, **real_kwargs)
        return result if len(func._schema.returns) == 1 else (args[0], result[1])

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._shapes.call(func, args, kwargs)
        except (DynamicOutputShapeException, NotImplementedError) as cause:
            raise CannotRehearse(
                f"{func} needs the values of its tensors, and {users_line()} asks for it."
            ) from cause

    def _enlarge(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count what the kernel takes beyond the shapes of its results: a loss before it is
        reduced, or a workspace.
        """
        if func in _LOSSES:
            self.ledger.resize(result.untyped_storage(), args[0].nbytes)
            return
        key = tuple(
            (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in tree_leaves(args)
        )
        if key not in self._workspaces:
            real = tree_leaves(
                func(*tree_map(_with_values, args), **tree_map(_with_values, kwargs))
            )
            self._workspaces[key] = [leaf.untyped_storage().nbytes() for leaf in real]
        for leaf, size in zip(tree_leaves(result), self._workspaces[key], strict=True):
            self.ledger.resize(leaf.untyped_storage(), size)

    def _know(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember that all numbers are finite, and what follows: what a loop asks before its
        optimizer's step.
        """
        if not isinstance(result, FakeTensor):
            return
        if (known := _of_finite(func, args)) is not None:
            self._known[result] = torch.tensor(known)
        elif self._known:
            own = [
                self._known.get(leaf, leaf) if isinstance(leaf, FakeTensor) else leaf
                for leaf in tree_leaves(args)
            ]
            if len(own) == len(args) and not any(isinstance(leaf, FakeTensor) for leaf in own):
                with suppress(Exception):  # a shape that only the whole has
                    self._known[result] = func(*own, **kwargs)

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        with self.fake:
            made = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        is_small = all(
            tensor.nbytes <= _REAL_BYTES[tensor.is_floating_point()] for tensor in tensors
        )
        return func(*args, **kwargs) if is_small or not (self.counts or _is_of_module()) else made

    def _assume(self, tensor: torch.Tensor) -> Any:
        """The value of one element that nobody has: what nothing goes wrong with."""
        value: float = 1
        if tensor.dtype == torch.bool:
            value = True
        elif tensor.is_floating_point():
            value = 1.0
        if tensor in self._known:
            return self._known[tensor].item()
        if _is_asked_by_user():
            what = f"a value that isn't known was taken to be {value}"
            self.assumed[f"{users_line()}: {what}"] = None
            doubt(f"{what.capitalize()}: what follows from another wasn't run.")
        return value

    def _places(self, tensor: torch.Tensor) -> torch.Tensor:
        """The places that aren't zero: all; of a part of a tensor, such as one expert's, that
        part's share of them.
        """
        base = tensor._base
        count = (
            tensor.numel() if base is None else -(-tensor.numel() * tensor.numel() // base.numel())
        )
        what = f"of {tensor.numel()} elements {count} were taken not to be zero"
        self.assumed[f"{users_line()}: {what}"] = None
        if _is_asked_by_user():
            doubt(f"{what.capitalize()}: what follows from others wasn't run.")
        return torch.zeros(count, tensor.ndim, dtype=torch.int64)

    def _count_sent(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func._schema.name.partition("::")[2].strip("_")
        named = {
            argument.name: value
            for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        handed = [
            leaf
            for key in _HANDED
            for leaf in tree_leaves(named.get(key))
            if isinstance(leaf, torch.Tensor)
        ]
        group = _group_in(named.values())
        if name.startswith("recv") and not _is_met(group):
            self.receives[group] = None
        if name not in _WITHOUT_MESSAGE:
            self.sent[name, group] += sum(tensor.nbytes for tensor in handed)
        if self.exchanges is not None and name not in _OF_TWO:
            # bytes are objects, of which each rank may have one of its own, as of parts
            alike = [] if name.startswith(_UNLIKE) else handed
            shapes = [str([*one.shape]) for one in alike if one.dtype != torch.uint8]
            self.exchanges.append((name, ", ".join(shapes), group, users_line()))


class CannotRehearse(RuntimeError):
    """A program needs a value, and its tensors have none."""


def _of_finite(func: Any, args: Any) -> bool | None:
    """The answer of an operation that asks finite numbers whether they are finite; None if it asks
    something else.
    """
    aten = torch.ops.aten
    if func in (aten.isnan.default, aten.isinf.default):
        return False
    if func in (aten.eq.Tensor, aten.ne.Tensor) and args[1] is args[0]:
        return bool(func is aten.eq.Tensor)
    if func in (aten.eq.Scalar, aten.ne.Scalar) and abs(args[1]) == math.inf:
        return bool(func is aten.ne.Scalar)
    return None


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _with_values(leaf: Any) -> Any:
    return torch.ones(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, FakeTensor) else leaf


def _bare(leaf: Any) -> Any:
    is_fake = isinstance(leaf, FakeTensor)
    return (
        torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        if is_fake
        else leaf
    )


def _unsent(func: Any, args: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(args[0] if isinstance(args[0], list) else [args[0]])
    work = _create_work_from_future(future).boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)


def _group_in(values: Iterable[Any]) -> str:
    names = [_group_name(each) for each in values if isinstance(each, torch.ScriptObject | str)]
    return next(filter(None, reversed(names)), "")


def _is_met(group: str) -> bool:
    """True for a group whose other ranks rehearse too."""
    found = dist.distributed_c10d._world.pg_names
    return any(name == group and dist.get_backend(each) != "fake" for each, name in found.items())


def _group_name(each: Any) -> str:
    if isinstance(each, str):
        return each
    try:
        return dist.ProcessGroup.unbox(each).group_name
    except (RuntimeError, AttributeError):
        return ""


def _frames() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]  # None ends it


def _is_of_module() -> bool:
    """True if a method of a module is what makes a tensor."""
    return any(isinstance(frame.f_locals.get("self"), torch.nn.Module) for frame in _frames())


def _is_asked_by_user() -> bool:
    """True if it isn't core's own code that asks for a value. A mode passes on what is asked."""
    for frame in _frames():
        if frame.f_code.co_name in ("__torch_dispatch__", "__torch_function__"):
            continue
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("torch", "core_plan", *sys.stdlib_module_names):
            return package != "core" and not package.startswith("core_")
    return False
