"""Teaches torch the device type `hpu`: a PrivateUse1 backend in Python, whose memory is the host's.

A tensor on the device is a wrapper around one on the CPU, its memory. In lazy mode an operation
allocates what it will return, full of NaN, and waits: see `simulated_gaudi.graph`. Views are there
at once. Whatever brings a value to the host, or can't know the shape of its result before, launches
the graph first, as does what has no kernel for shapes. To import this module is to register the
device in this process, for good.
"""

import threading
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

from simulated_gaudi import graph, random_numbers
from simulated_gaudi.memory import Allocation

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    raise ImportError(
        f"the simulated devices need torch 2.13: torch {torch.__version__} can't have one in Python"
    )

_aten = torch.ops.aten
# These take tensors of two devices, as on any other kind of device.
_CROSSES_DEVICES = {
    _aten.copy_.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_HOST, _META = torch.device("cpu"), torch.device("meta")
_signatures = {}
_lock = threading.RLock()  # backward runs in a thread of its own


class HPUTensor(torch.Tensor):
    """A tensor on `hpu:0`, of the same shape and dtype as its memory on the host."""

    @staticmethod
    def __new__(cls, raw, allocation=None):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("hpu", 0),
        )
        tensor.raw = raw
        tensor.allocation = allocation or Allocation(raw.untyped_storage().nbytes())
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return run(operation, *args, **(kwargs or {}))

    # With these two, `module.to("hpu")` swaps parameters and keeps their identity.
    def __tensor_flatten__(self):
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(tensors, context, size, stride):
        return HPUTensor(tensors["raw"])

    def tolist(self):
        # torch's own refuses subclasses, which tensors of a real device aren't
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol):
        graph.launch("value")
        return super().__reduce_ex__(protocol)

    def __repr__(self):
        return f"{self.cpu()!r} on hpu:0"


def run(operation, *args, **kwargs):
    """Run an operation: torch calls this for every one with a tensor of this device, or that is to
    make one.
    """
    # In inference mode torch hands over what it takes apart itself otherwise.
    if operation.has_kernel_for_dispatch_key(_COMPOSED):
        return operation.decompose(*args, **kwargs)
    with _lock:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ours = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, HPUTensor)}
        _refuse_strangers(operation, tensors, ours)
        if operation is _aten.copy_.default:
            return copy(args[1], args[0])
        goes_home = any(isinstance(leaf, torch.device) and leaf.type != "hpu" for leaf in leaves)
        if goes_home or operation.is_view or not graph.IS_LAZY:
            return _at_once(
                operation, args, kwargs, ours, launches=not operation.is_view, wraps=not goes_home
            )
        return _wait(operation, args, kwargs, ours)


def copy(source, target, non_blocking=False):
    """Copy to, from or on the device. What the host has is taken as it is now: the host may go on
    writing there.
    """
    if not isinstance(target, HPUTensor):
        graph.launch("value")
        return target.copy_(source.raw)
    raw = source.raw if isinstance(source, HPUTensor) else source.detach().clone()
    graph.add(("copy", tuple(target.shape), target.dtype), lambda: target.raw.copy_(raw))
    return target


def _at_once(operation, args, kwargs, ours, *, launches=True, wraps=True):
    """Compute on the host's memory, now. A view doesn't look at values, and launches nothing."""
    if launches:
        graph.launch("value")
    with random_numbers.of_the_device(operation):
        host_args, host_kwargs = pytree.tree_map(_memory_of, (args, kwargs))
        output = operation(*host_args, **host_kwargs)
    first = next(iter(ours.values()), None)
    allocation = first.allocation if operation.is_view and first is not None else None
    return (
        pytree.tree_map_only(torch.Tensor, lambda raw: _wrap(raw, ours, allocation), output)
        if wraps
        else output
    )


def _wait(operation, args, kwargs, ours):
    """Allocate what comes out, and leave the computation to the graph."""
    own, structure = pytree.tree_flatten(pytree.tree_map(_own_memory_of, (args, kwargs)))
    try:
        expected = _expected(operation, own, structure)
    except (NotImplementedError, RuntimeError):
        # a value decides, or the user is wrong: the host will say
        return _at_once(operation, args, kwargs, ours)
    places = [_place(like, own) for like in expected.results]

    def compute():
        host_args, host_kwargs = pytree.tree_unflatten(own, structure)
        with random_numbers.of_the_device(operation):
            made = pytree.tree_leaves(operation(*host_args, **host_kwargs))
        for place, value in zip_longest(places, made):
            if isinstance(place, torch.Tensor) and place is not value:
                place.copy_(value)

    graph.add((operation, *expected.results), compute)
    return pytree.tree_unflatten([_wrap(place, ours) for place in places], expected.structure)


class _Argument(NamedTuple):
    """A result that is the argument at this place, written to."""

    index: int


class _Shape(NamedTuple):
    """A tensor without its values."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Expected(NamedTuple):
    """The results that an operation will return, as far as that is known before it is computed."""

    results: tuple[Any, ...]
    structure: Any


def _expected(operation, leaves, structure):
    """Ask torch's kernels for shapes, once for each signature."""
    shapes = tuple(_shape_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    key = (operation, structure, shapes, tuple(map(type, leaves)))
    if key not in _signatures:
        promised = [_promise(shape) for shape in shapes]
        indices = {
            id(leaf): index for index, leaf in enumerate(promised) if isinstance(leaf, torch.Tensor)
        }
        args, kwargs = pytree.tree_unflatten(promised, structure)
        results, form = pytree.tree_flatten(operation(*args, **kwargs))
        _signatures[key] = _Expected(tuple(_result(result, indices) for result in results), form)
    return _signatures[key]


def _promise(leaf):
    if isinstance(leaf, _Shape):
        return torch.empty_strided(leaf.size, leaf.stride, dtype=leaf.dtype, device=_META)
    return _META if isinstance(leaf, torch.device) else leaf


def _result(result, indices):
    if not isinstance(result, torch.Tensor):
        return result
    return _Argument(indices[id(result)]) if id(result) in indices else _shape_of(result)


def _shape_of(tensor):
    return _Shape(tensor.size(), tensor.stride(), tensor.dtype)


def _place(like, own):
    """The memory in which a result will be: that of an argument, or new memory, in which nothing is
    to be read yet.
    """
    if isinstance(like, _Argument):  # an operation in place
        return own[like.index]
    if not isinstance(like, _Shape):
        return like
    place = torch.empty_strided(like.size, like.stride, dtype=like.dtype)
    return place.fill_(torch.nan) if like.dtype.is_floating_point else place


def _wrap(raw, ours, allocation=None):
    if not isinstance(raw, torch.Tensor):
        return raw
    same = ours.get(id(raw))
    return HPUTensor(raw, allocation) if same is None else same


def _refuse_strangers(operation, tensors, ours):
    strangers = [
        tensor for tensor in tensors if not isinstance(tensor, HPUTensor) and tensor.dim() > 0
    ]
    if ours and strangers and operation not in _CROSSES_DEVICES:
        raise RuntimeError(
            f"{operation}: expected all tensors on one device, and one is on {strangers[0].device}."
        )


def _memory_of(leaf):
    if isinstance(leaf, HPUTensor):
        return leaf.raw
    return _HOST if isinstance(leaf, torch.device) else leaf


def _own_memory_of(leaf):
    """The same; of the host's tensors a copy, since the host may go on writing there."""
    is_strange = isinstance(leaf, torch.Tensor) and not isinstance(leaf, HPUTensor)
    return leaf.detach().clone() if is_strange else _memory_of(leaf)


def _made(operation):
    """A function that makes a tensor by itself. Torch's own way is to give an empty one another
    size.
    """

    def make(*args, device=None, **options):
        with random_numbers.of_the_device(operation):
            return HPUTensor(operation(*args, device=_HOST, **options))

    return make


def register(module):
    """Make `module` known as `torch.hpu`, and this file's functions as the device's."""
    backend_registration._setup_privateuseone_for_python_backend("hpu", module)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(run, "PrivateUse1")
    # `torch.tensor(..., device="hpu")` copies while Python's dispatch is off, where the fallback
    # can't be called.
    copies = torch.library.Library("aten", "IMPL")
    copies.impl("_copy_from", copy, "PrivateUse1")
    for name in (
        "arange",
        "arange.start",
        "arange.start_step",
        "linspace",
        "eye",
        "eye.m",
        "randperm",
    ):
        packet, _, overload = name.partition(".")
        copies.impl(
            name, _made(getattr(getattr(_aten, packet), overload or "default")), "PrivateUse1"
        )
    _kept.extend((fallback, copies))


_kept = []
