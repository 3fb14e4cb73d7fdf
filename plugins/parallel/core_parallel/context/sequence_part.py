"""Results of a model by position, of which each rank keeps its own part of the sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.context import losses_of_positions
from core_parallel.modules import losses
from core_parallel.modules.parted_tensor import PartedTensor, refused

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Positions:
    """Which positions a rank has.

    Attributes:
        dim: of the values, which is the sequence; with `num_samples`, samples and positions as one.
        start: the first position.
        length: the number of positions of all ranks.
        num_samples: in the same dim, 1 if they have one of their own.
    """

    dim: int
    start: int
    length: int
    num_samples: int = 1

    def of(self, whole: Tensor, dim: int, number: int) -> Tensor:
        """This rank's positions of a whole tensor.

        Args:
            whole: of all positions.
            dim: its dim that is the sequence.
            number: of positions of this rank.
        """
        apart = whole.unflatten(dim, (self.num_samples, self.length))
        own: Tensor = apart.narrow(dim + 1, self.start, number).flatten(dim, dim + 1)
        return own


class SequencePart(PartedTensor):
    """The values of a whole sequence, of which this rank has its own positions."""

    option = "local_loss='context'"
    uses = "Functions by position, slices of positions, views as (samples * length, classes)"
    _span: Positions

    @staticmethod
    def __new__(cls, part: Tensor, span: Positions, group: Any) -> Self:
        """Make one.

        Args:
            part: the values of this rank's positions, with a graph.
            span: which these are.
            group: of the ranks.
        """
        shape = list(part.shape)
        shape[span.dim] = span.num_samples * span.length
        made = cls._make(part, shape, group)
        made._span = span
        return made

    def whole(self) -> Tensor:
        """All ranks of the group. The values of all positions, on each rank."""
        span, dim = self._span, self._span.dim
        apart = self._part.unflatten(dim, (span.num_samples, -1))
        after = span.length - span.start - apart.shape[dim + 1]
        padded = functional.pad(apart, (*[0, 0] * (apart.ndim - dim - 2), span.start, after))
        return collectives.add_up(padded.flatten(dim, dim + 1), self._group)

    def _like(self, part: Tensor) -> Self:
        return self._with(part, self._span)

    def _with(self, part: Tensor, span: Positions) -> Self:
        return type(self)(part, span, self._group)

    def _softmax(self, dim: int, *_: Any, dtype: Any = None, **__: Any) -> Self:
        return self._like(self._part.softmax(self._of_classes(dim), dtype=dtype))

    def _log_softmax(self, dim: int, *_: Any, dtype: Any = None, **__: Any) -> Self:
        return self._like(self._part.log_softmax(self._of_classes(dim), dtype=dtype))

    def _argmax(self, dim: int) -> Tensor:
        """All ranks of the group. The largest classes of all positions."""
        dim = self._of_classes(dim)
        shifted = replace(self._span, dim=self._span.dim - (dim < self._span.dim))
        return self._with(self._part.argmax(dim), shifted).whole()  # a number for each position

    def _of_classes(self, dim: int) -> int:
        if dim % self.ndim == self._span.dim:
            raise refused(self, Tensor.softmax)
        return dim % self.ndim

    def _sliced(self, index: Any) -> Self:
        places, span, dim = self._places(index), self._span, self._span.dim
        if dim >= len(places) or places[dim] == slice(None):
            return self._like(self._part[tuple(places)])
        if span.num_samples > 1:
            raise refused(self, Tensor.__getitem__)
        start, stop, _ = places[dim].indices(span.length)
        own = self._part.shape[dim]
        first, last = (min(max(one - span.start, 0), own) for one in (start, stop))
        places[dim] = slice(first, max(first, last))
        length = max(stop - start, 0)
        begin = min(max(span.start - start, 0), length)
        return self._with(self._part[tuple(places)], replace(span, start=begin, length=length))

    def _viewed(self, *shape: Any) -> Self:
        sizes, own = self._sizes(shape), list(self.shape)
        if sizes == own:
            return self
        if self._span.dim != 1 or sizes != [own[0] * own[1], *own[2:]]:
            raise refused(self, Tensor.view)
        return self._with(self._part.flatten(0, 1), replace(self._span, dim=0, num_samples=own[0]))

    def _transposed(self, dim0: int, dim1: int) -> Self:
        one, other, dim = dim0 % self.ndim, dim1 % self.ndim, self._span.dim
        moved = {one: other, other: one}.get(dim, dim)
        return self._with(self._part.transpose(one, other), replace(self._span, dim=moved))

    def _permuted(self, *dims: Any) -> Self:
        order = self._order(dims)
        return self._with(
            self._part.permute(order), replace(self._span, dim=order.index(self._span.dim))
        )

    def _lose(self, loss: Any, given: dict[str, Any]) -> Tensor:
        span, target = self._span, given["target"]
        classes = min(1, self.ndim - 1)
        if loss is losses.LINEAR_CROSS_ENTROPY and loss is not losses.CROSS_ENTROPY:
            classes = self.ndim - 1
        if span.dim == classes or given.get("reduction") == "none":
            raise refused(self, loss)
        dim = span.dim
        if target.ndim < self.ndim:
            dim -= classes < span.dim
        expected = span.num_samples * span.length
        if dim >= target.ndim or target.shape[dim] != expected:
            raise ModuleError(
                f"{loss.__name__} of values for {expected} positions got a target of shape "
                f"{tuple(target.shape)}. It must be of the whole sequence."
            )
        number = self._part.shape[span.dim] // max(span.num_samples, 1)
        own = {**given, "input": self._part, "target": span.of(target, dim, number)}
        return losses_of_positions.of_all(loss, own, self._group)
