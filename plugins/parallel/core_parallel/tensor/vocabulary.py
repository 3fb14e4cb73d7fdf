"""Logits of which each rank of a tensor group has those of its own words, and their cross entropy.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.following import exchanges
from core_parallel.following.marks import Mixed, PartAlong, mark_of, put, put_as
from core_parallel.following.mode import follow_over, is_followed, set_aside
from core_parallel.modules import losses
from core_parallel.modules.parted_tensor import PartedTensor, refused

if TYPE_CHECKING:
    from typing import Self

    from torch.distributed.device_mesh import DeviceMesh

_AXIS = "tensor"
_HALVES = (torch.float16, torch.bfloat16)


class VocabularyPart(PartedTensor):
    """The values of all classes, of which this rank has its own."""

    option = "local_loss='tensor'"
    uses = "Functions by element, slices and views of samples and positions"
    _dim: int

    @staticmethod
    def __new__(cls, part: Tensor, dim: int, group: Any) -> Self:
        """Make one.

        Args:
            part: the values of this rank's classes, with a graph.
            dim: which are the classes.
            group: of the ranks.
        """
        shape = list(part.shape)
        shape[dim] *= group.size()
        made = cls._make(part, shape, group)
        made._dim = dim % part.ndim
        return made

    def whole(self) -> Tensor:
        """All ranks of the group. The values of all classes, on each rank."""
        with set_aside():
            joined = collectives.join(self._part, self._dim, self._group)
        mark = mark_of(joined, _AXIS)  # of the exchange; along other axes it lies as before
        put_as([joined], self._part)
        put([joined], _AXIS, mark)
        return joined

    def _like(self, part: Tensor) -> Self:
        return type(self)(part, self._dim, self._group)

    def _sliced(self, index: Any) -> Self:
        places = self._places(index)
        if self._dim < len(places) and places[self._dim] != slice(None):
            raise refused(self, Tensor.__getitem__)
        return self._like(self._part[tuple(places)])

    def _viewed(self, *shape: Any) -> Self:
        sizes = self._sizes(shape)
        if self._dim != self.ndim - 1 or sizes[-1] != self.shape[-1]:
            raise refused(self, Tensor.view)
        return type(self)(
            self._part.reshape(*sizes[:-1], self._part.shape[-1]), len(sizes) - 1, self._group
        )

    def _transposed(self, dim0: int, dim1: int) -> Self:
        one, other = dim0 % self.ndim, dim1 % self.ndim
        moved = {one: other, other: one}.get(self._dim, self._dim)
        return type(self)(self._part.transpose(one, other), moved, self._group)

    def _permuted(self, *dims: Any) -> Self:
        order = self._order(dims)
        return type(self)(self._part.permute(order), order.index(self._dim), self._group)

    def _argmax(self, dim: int) -> Tensor:
        """All ranks of the group. The first of the largest classes."""
        if dim % self.ndim != self._dim:
            raise refused(self, Tensor.argmax)
        own, places = self._part.detach().max(self._dim)
        largest = collectives.largest(own, self._group)
        first: Tensor = places + self._group.rank() * self._part.shape[self._dim]
        first = first.where(own == largest, self.shape[self._dim])
        dist.all_reduce(first, dist.ReduceOp.MIN, group=self._group)
        put([first], _AXIS, None)
        return first

    def _lose(self, loss: Any, given: dict[str, Any]) -> Tensor:
        if loss is not losses.CROSS_ENTROPY or self._dim != min(1, self.ndim - 1):
            raise refused(self, loss)
        if given["target"].is_floating_point() or given.get("weight") is not None:
            raise ModuleError(
                "cross_entropy of logits in parts (local_loss='tensor') takes labels that are "
                "classes, and no weight of classes. Call .whole() on the logits first, on all "
                "ranks; or leave local_loss out."
            )
        found = _cross_entropy(
            self._part.movedim(self._dim, -1), self._group, self.shape[self._dim], given
        )
        mark = mark_of(found, _AXIS)
        if isinstance(mark, Mixed):
            raise ModuleError(
                "cross_entropy of logits in parts (local_loss='tensor') computes "
                f"{mark.operation} of a rank's own classes. Leave local_loss out."
            )
        return found


def _cross_entropy(logits: Tensor, group: Any, number: int, given: dict[str, Any]) -> Tensor:
    """All ranks of the group. The loss of logits (..., own classes), of `number` classes in all."""
    dtype, target = logits.dtype, given["target"]
    if dtype in _HALVES:
        logits = logits.float()
    counted = target != given.get("ignore_index", losses.IGNORED)
    _check_classes(target[counted], number)
    largest = collectives.largest(logits.detach().amax(-1), group)
    shifted = logits - largest.unsqueeze(-1)
    place = target - group.rank() * logits.shape[-1]
    is_own = (place >= 0) & (place < logits.shape[-1])
    of_target = (
        shifted.gather(-1, place.where(is_own, 0).unsqueeze(-1)).squeeze(-1).where(is_own, 0.0)
    )
    exchanges.declare_terms(of_target, group)
    smoothing = given.get("label_smoothing", 0.0)
    of_target = of_target * (1 - smoothing)
    if smoothing:
        of_target = of_target + shifted.sum(-1) * (smoothing / number)
    found = collectives.add_up(shifted.exp().sum(-1), group).log() - collectives.add_up(
        of_target, group
    )
    found = found.where(counted, 0.0)
    reduction = given.get("reduction", "mean")
    if reduction != "none":
        found = found.sum() if reduction == "sum" else found.sum() / counted.sum()
    is_autocast = torch.is_autocast_enabled(logits.device.type)
    return found if is_autocast else found.to(dtype)


def _check_classes(target: Tensor, number: int) -> None:
    """Refuse labels that no rank would find, on a device that is asked without waiting for it."""
    if (
        target.device.type == "cpu"
        and target.numel()
        and not 0 <= int(target.min()) <= int(target.max()) < number
    ):
        raise ModuleError(
            f"cross_entropy got labels from {int(target.min())} to {int(target.max())}, for "
            f"{number} classes."
        )


class LogitsInside(VocabularyPart):
    """The same within a call of the model, which all ranks of the group make alike: what can't be
    done in parts is done with the whole.
    """

    option = "tensor="
    _joined: Tensor | None = None
    _kin: list[weakref.ref[Tensor]]
    """Those that may share values: what is changed in place must be alone."""

    @staticmethod
    def __new__(cls, part: Tensor, dim: int, group: Any) -> Self:
        """Make one; see `VocabularyPart`."""
        made = VocabularyPart.__new__(cls, part, dim, group)
        made._kin = [weakref.ref(made)]
        return made

    def returned(self) -> Tensor:
        """All ranks of the group. The whole, the same each time."""
        if self._joined is None:
            self._joined = self.whole()
        return self._joined

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs = kwargs or {}
        own = [one for one in tree_leaves((args, kwargs)) if isinstance(one, cls)]
        if all(one._joined is None for one in own):
            try:
                result = super().__torch_function__(func, types, args, kwargs)
            except ModuleError:
                if _writes(func, kwargs) and any(map(cls._is_shared, own)):
                    raise
            else:
                if isinstance(result, cls):
                    result._kin = own[0]._kin
                    result._kin.append(weakref.ref(result))
                return result
        args, kwargs = tree_map_only(cls, cls.returned, (args, kwargs))
        return func(*args, **kwargs)

    def _is_shared(self) -> bool:
        return any(one() is not None and one() is not self for one in self._kin)


def _writes(func: Any, kwargs: Any) -> bool:
    """True for a function that changes what it is given."""
    name = getattr(func, "__name__", "")
    return (
        name == "__setitem__"
        or (name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}"))
        or (name.endswith("_") and not name.endswith("__"))
        or kwargs.get("out") is not None
    )


class ColwiseLogits(ColwiseParallel):
    """A layer cut by columns, whose values stay in parts: `VocabularyPart`.

    Args:
        model: in whose calls they stay so, and that returns whole ones; without it they are in
            parts wherever they go.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        self._model = model

    @property
    def joins(self) -> bool:
        """True if the model returns whole logits."""
        return self._model is not None

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, num_calls = device_mesh.get_group(), [0]

        def begin(module: nn.Module, args: Any) -> None:
            if not torch.compiler.is_compiling():
                num_calls[0] += 1

        def end(module: nn.Module, args: Any, result: Any) -> Any:
            if torch.compiler.is_compiling() or not num_calls[0]:
                return result
            num_calls[0] -= 1
            return tree_map_only(LogitsInside, LogitsInside.returned, result)

        def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            if is_followed(_AXIS):
                follow_over(_AXIS, group)
                put([output], _AXIS, PartAlong(output.ndim - 1))
            if self._model is None:
                return VocabularyPart(output, output.ndim - 1, group)
            if torch.compiler.is_compiling():  # a graph has no parts
                part = DTensor.from_local(output, device_mesh, [Shard(-1)], run_check=False)
                return part.redistribute(placements=[Replicate()]).to_local()
            inside = LogitsInside(output, output.ndim - 1, group)
            return inside if num_calls[0] else inside.whole()

        cut = super()._apply(module, device_mesh)
        cut.register_forward_hook(keep)
        if self._model is not None:
            self._model.register_forward_pre_hook(begin)
            self._model.register_forward_hook(end, always_call=True)
        return cut
