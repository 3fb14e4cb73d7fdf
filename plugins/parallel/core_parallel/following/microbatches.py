"""How what a step computes for a microbatch relates to what it computes for the whole batch.

Values of samples are a part of those of the batch. A sum over samples is a term of that of the
batch; a mean is that of the batch if it is weighted by the number of what it is a mean over. What
is linear keeps that, and anything else mixes.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import doubt, refuse
from core_parallel.following.lengths import READS, takes_one
from core_parallel.following.marks import MICROBATCH, Mixed, PartAlong, mark_of, place_of, put
from core_parallel.following.mode import Following
from core_parallel.following.rules import result_of
from core_parallel.following.terms import LINEAR
from core_parallel.modules.followed_calls import is_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core_parallel.following.operations import Operation

_LARGEST_TO_ADD = 1e-5  # to a sum by which something is divided
_TOLERANCE = 1e-5
_PLACES = "places"
"""The axis of `torch.arange` of so many numbers as there are samples."""
_FEW = 2  # samples: by 2 a mean of two losses is divided as well


@dataclass(frozen=True, eq=False)
class Term:
    """A term of the batch's sum.

    Attributes:
        place: the user's line that has summed.
    """

    place: str = ""


@dataclass(frozen=True, eq=False)
class Mean:
    """The batch's mean, once it is weighted.

    Attributes:
        counts: the numbers of what it is a mean over, each a float or a tensor with one element:
            the weights of microbatches must be in proportion to each of them.
    """

    counts: tuple[Any, ...]


_EXCHANGES = ("c10d", "_c10d_functional")
"""Operations between ranks that have the same samples, such as of parts of a sequence."""


class FollowedMicrobatch(Following):
    """A context in which what a step computes of one microbatch is marked.

    Args:
        num_samples: of the microbatch.
    """

    noted = Following.noted | {Tensor.__len__, torch.arange}

    def __init__(self, num_samples: int) -> None:
        super().__init__(MICROBATCH, "", followed="microbatches, in the step around the model")
        self._num_samples = num_samples
        self._numbers: list[float] = []
        self._inverse: float | None = None  # of that number, once the step may have divided by it
        self._places: list[Tensor] = []
        self._sums: list[weakref.ref[Tensor]] = []

    def forget(self) -> None:
        """The step is over: what it keeps, such as a running average, is a plain value."""
        put([one for one in (ref() for ref in self._sums) if one is not None], MICROBATCH, None)

    def begin(self, given: Any) -> None:
        """Mark the tensors among some values that have the samples as their first dim."""
        for one in tree_leaves(given):
            if isinstance(one, Tensor) and one.ndim and len(one) == self._num_samples:
                put([one], MICROBATCH, PartAlong(0))

    def answered(self, answer: Callable[[], Any]) -> Any:
        """The answer of the model, which has the samples as its first dim. How it is computed isn't
        followed.
        """
        self.depth += 1
        try:
            found = answer()
        finally:
            self.depth -= 1
        self.begin(found)
        return found

    def has_marked(self, given: Sequence[Tensor]) -> bool:
        """True if one has a mark, along whichever axis."""
        return any(hasattr(one, "_core_parallel_marks") for one in given)

    def result_of(self, call: Operation) -> Any:
        """The mark of an operation's results."""
        if call.is_higher or not call.results:
            return super().result_of(call)
        marks = [mark_of(one, MICROBATCH) for one in call.given]
        if call.func.namespace in _EXCHANGES:
            return next((one for one in marks if one is not None), None)
        if any(isinstance(one, Term | Mean) for one in marks):
            self._sums += map(weakref.ref, call.results)
            return self._of_sums(call)
        if call.name == "index" and self._picks(*call.args):
            return PartAlong(0)
        if _has_places(call):
            return Mixed("arange")
        found = super().result_of(call)
        if call.name in ("mul", "div") and found is not None:
            if self._has_count(call):
                return Mixed(f"{call.name} by the number")
            if any(type(one) in (int, float) and not one for one in call.args):
                return None  # a term that is left out
        return _over_samples(call, marks) or found if isinstance(found, Mixed) else found

    def _has_count(self, call: Operation) -> bool:
        """True if an operation computes with a plain number that was counted of samples."""
        is_sum = isinstance(mark_of(call.args[0], MICROBATCH), Term)
        is_mean_divided = call.name == "div" and not is_sum
        counted = [one for one in self._numbers if one > _FEW or not is_mean_divided]
        known = {*counted, self._inverse}
        return any(type(one) in (int, float) and one in known for one in call.args)

    def _of_sums(self, call: Operation) -> Any:
        """The mark of what is computed of sums and means over the samples."""
        given: list[Any] = [*call.args, *call.kwargs.values()]
        first, others = given[0], given[1:]
        grows = isinstance(first, Tensor) and call.results[0].numel() > first.numel()
        if call.name == "expand" and grows and self._num_samples in call.results[0].shape:
            return Mixed("expand by the number")
        if LINEAR.fullmatch(call.name):
            return _added([mark_of(one, MICROBATCH) for one in tree_leaves(first)], call.name)
        one, other = mark_of(first, MICROBATCH), mark_of(others[0], MICROBATCH) if others else None
        if call.name == "mean" and isinstance(one, Mean):
            return one
        if call.name in ("add", "sub", "rsub"):
            if isinstance(others[0], int | float) and isinstance(one, Term):
                return one if abs(others[0]) <= _LARGEST_TO_ADD else Mixed(call.name)
            return _added([one, other], call.name)
        if call.name in ("clamp", "clamp_min") and isinstance(one, Term):
            return one  # by which something is divided: none of no items
        if call.name == "mul" and (one is None or other is None):
            return Mixed("mul by the number") if self._has_count(call) else one or other
        if call.name == "div":
            return self._divided(call, one, other, others[0])
        return Mixed(call.name)

    def _divided(self, call: Operation, one: Any, other: Any, divisor: Any) -> Any:
        if other is None:
            if not self._has_count(call):
                return one
            is_count = isinstance(one, Term) and divisor in self._numbers
            return Mean((float(divisor),)) if is_count else Mixed("div by the number")
        if isinstance(one, Term) and isinstance(other, Term):
            return Mean((divisor,))
        if isinstance(one, Mean) and isinstance(other, Mean):
            return Mean((*one.counts, *other.counts, divisor))
        return Mixed(call.name)

    def note(self, func: Any, args: Any, result: Any) -> None:
        """Note numbers of samples, by which sums are divided, and the places of samples."""
        mark = mark_of(args[0], MICROBATCH) if args else None
        inverse = 1 / self._num_samples  # 1.0 / size is a plain number; 0.1 may be any
        reads = func is Tensor.__len__ or func in READS
        if reads and mark == PartAlong(0) and round(inverse, 3) != inverse:
            self._inverse = inverse
        if func is Tensor.__len__ and mark == PartAlong(0):
            self._numbers.append(result)
        elif func is torch.arange:
            self._places.append(result)
            if len(result) == self._num_samples:
                put([result], _PLACES, PartAlong(0))
        elif (
            isinstance(mark, Term)
            and takes_one(func, args, MICROBATCH)
            and "div" in func.__name__
            and not args[1] % self._num_samples
        ):
            put([result], MICROBATCH, Mean((float(args[1]),)))
        elif mark is not None:
            super().note(func, args, result)

    def _picks(self, values: Tensor, indices: list[Any]) -> bool:
        """True for `values[torch.arange(n), labels]`: of each sample its own."""
        is_by_place = any(one is indices[0] for one in self._places)
        return is_by_place and mark_of(values, MICROBATCH) == PartAlong(0)

    def refuse_numbers(self, given: Any) -> None:
        """Note a number that is made of what was computed: it may be what a sum is divided by."""
        for one in tree_leaves(given):
            if isinstance(mark_of(one, MICROBATCH), Term) and one.numel() == 1:
                self._numbers.append(float(one))


def _has_places(call: Operation) -> bool:
    """True if an operation computes with samples and their places in the microbatch; places by
    themselves are followed.
    """
    places, own = _parts_along(_PLACES, call), _parts_along(MICROBATCH, call)
    if not own and places:
        put(call.results, _PLACES, result_of(_PLACES, call))
    if torch.Tag.pointwise in call.func.tags:
        behind = {one.ndim - mark.dim for one, mark in places}
        return any(one.ndim - mark.dim in behind for one, mark in own)
    is_loss = "reduction" in call.arguments
    return is_loss and bool(own) and any(mark.dim == 0 for _, mark in places)


def _parts_along(axis: str, call: Operation) -> list[tuple[Tensor, PartAlong]]:
    """The tensors that an operation is given that are parts along an axis, with their marks."""
    marked = [(one, mark_of(one, axis)) for one in call.given]
    return [(one, mark) for one, mark in marked if isinstance(mark, PartAlong)]


def _over_samples(call: Operation, marks: list[Any]) -> Any:
    """The mark of a result that goes over the samples; None if it is neither a sum nor a mean."""
    if not all(one is None or isinstance(one, PartAlong) for one in marks):
        return None
    given, _ = _parts_along(MICROBATCH, call)[0]
    arguments = call.arguments
    if call.name == "masked_select" or _is_mask(arguments.get("indices", [None])[0]):
        return PartAlong(0)
    if call.name in ("sum", "dot", "count_nonzero"):
        return Term()
    if call.name == "mean":
        return Mean((given.numel() / max(call.results[0].numel(), 1),))
    if "reduction" not in arguments:
        return None
    count: Any = float(given.numel())
    if call.name.startswith("nll_loss"):
        count = _count_of_labels(arguments, call.results[1])
    return (PartAlong(0), Mean((count,)), Term())[arguments["reduction"]]


def _count_of_labels(arguments: dict[str, Any], total: Tensor) -> Tensor:
    """The number of labels that count, or the sum of their weights, which a loss has returned
    beside it.
    """
    labels: Tensor = arguments["target"]
    if is_fake(total) and not is_fake(labels) and arguments["weight"] is None:
        is_counted: Tensor = labels != arguments["ignore_index"]
        return is_counted.sum()
    return total


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _added(marks: list[Any], name: str) -> Any:
    counts: list[Any] = []
    if all(isinstance(one, Term) for one in marks):
        return marks[0]
    for one in marks:
        if isinstance(one, Mean):
            counts += one.counts
        elif one is not None:
            return one if isinstance(one, Mixed) else Mixed(name)
    return Mean(tuple(counts))


def refuse_other_losses(losses: list[Any], weights: list[float]) -> None:
    """Refuse losses of microbatches that don't make up that of their batch.

    Args:
        losses: of all microbatches of a batch, each computed in a `FollowedMicrobatch`.
        weights: of them; one of 0 doesn't count.

    Raises:
        ModuleError: with what they are.
    """
    marks = [
        mark_of(one, MICROBATCH) for one, weight in zip(losses, weights, strict=True) if weight
    ]
    for mark in marks:
        if mark is not None and not isinstance(mark, Mean):
            return _refuse(losses, _described(mark), place_of(mark))
    counts = [mark.counts for mark in marks if mark is not None]
    if len({*map(len, counts)}) > 1 or 0 < len(counts) < len(marks):
        return _refuse(losses, "they are computed in several ways")
    given = [weight for weight in weights if weight]
    for column in zip(*counts, strict=True):
        if any(map(is_fake, column)):
            doubt(_UNKNOWN, axis="pipeline")
            continue
        own = [float(one) for one in column]
        shares = [one / weight for one, weight in zip(own, given, strict=True)]
        if max(shares) - min(shares) > _TOLERANCE * max(map(abs, shares)):
            what = f"they are means over {_shown(own)} items, and their weights are {_shown(given)}"
            _refuse(losses, what)


_UNKNOWN = (
    "The losses of microbatches are means over numbers of items that aren't known without values. "
    "Return them as the step's 'weight', or give each microbatch as many."
)


def _refuse(losses: list[Any], what: str, place: str = "") -> None:
    refuse(ModuleError(_TEXT.format(len(losses), what)), axis="pipeline", place=place)


_TEXT = (
    "The training step's loss for a batch isn't the mean of those for its {} microbatches: {}. "
    "With a schedule the step runs for one microbatch at a time. Return a mean over samples, or "
    "the number of items that it is a mean over as its 'weight'; a loss that is a sum, or mixes "
    "the samples of a batch, goes without schedule."
)


def _shown(numbers: list[float]) -> str:
    return ", ".join(f"{one:g}" for one in numbers)


def _described(mark: Any) -> str:
    if isinstance(mark, Term):
        return "it is a sum"
    if isinstance(mark, PartAlong):
        return "it is a value of a sample"
    return f"{mark} mixes its samples"


def is_mixed(given: Any) -> bool:
    """True if one of some values was computed of several samples."""
    marks = [mark_of(one, MICROBATCH) for one in tree_leaves(given)]
    return any(one is not None and not isinstance(one, PartAlong) for one in marks)
