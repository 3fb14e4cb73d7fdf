"""One stage of a model, as torch's pipelines take it: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from core import ModuleError
from core_parallel.following.mode import arrive, leave
from core_parallel.modules import graphs
from core_parallel.pipeline.forward_pass import can_learn
from core_parallel.stages import forms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.draws import Seeds

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Within = Callable[[int, Callable[..., Any]], None]
Header = tuple[Any, list[forms.TensorForm]]
"""The structure of results, and the forms of the tensors in it."""


class StageModule(nn.Module):
    """The parts of one stage, and parameters of no part, which the user's step may use beside them.

    The first microbatch of a kind is computed by `compute_first`, before torch's schedule begins:
    what goes from stage to stage is known by then.

    Args:
        chain: of the model.
        stage: its number.
        context: makes what stages compute in, such as autocast.
        splits: backward may come in two halves.

    Attributes:
        given: for the first microbatch, what the stage before has sent; None if the schedule
            computes that one too.
        outputs: the results of the first microbatch, as they travel.
        header: the structure of these, and their shapes and dtypes in the stage.
    """

    # of the step, see `begin`
    _seeds: Seeds
    _take: Callable[[int], Arguments]
    _within: Within | None
    _numbers: Iterator[int]

    def __init__(
        self,
        chain: Chain,
        stage: int,
        context: Callable[[], AbstractContextManager[Any]],
        *,
        splits: bool,
    ) -> None:
        super().__init__()
        self._chain, self._stage, self._context, self._splits = chain, stage, context, splits
        # no attribute of a part, and of no gradient
        self._anchor = torch.zeros((), requires_grad=True)
        # torch's schedules that split backward find parameters here.
        self.parts = nn.ModuleList(chain.layout.cut.stages[stage])
        self.outside = nn.ParameterList(chain.layout.outside())
        self.given: tuple[Tensor, ...] | None = None
        self.outputs: tuple[Tensor, ...] = ()
        self.header: Header | None = None
        self._given_header: Header | None = None
        self._known: Any = None
        self.pipeline_stage: Any = None

    def begin(
        self, seeds: Seeds, take: Callable[[int], Arguments], within: Within | None = None
    ) -> None:
        """A step begins.

        Args:
            seeds: its random numbers.
            take: the arguments of the model for a microbatch.
            within: runs the user's step for a microbatch, in whose call of the model this stage
                computes; None if it computes by itself.
        """
        self._seeds, self._take, self._numbers = seeds, take, count()
        self._within = within
        self.given, self.outputs = None, ()

    def compute_first(self, given: tuple[Tensor, ...], header: Header | None) -> None:
        """Compute the first microbatch.

        Args:
            given: the results of the stage before, each a leaf; none for the first stage.
            header: of these.
        """
        self.given, self._given_header = given, header
        self._known = None  # it has come with the header
        self.outputs = self._compute(0, given)
        # the newest ones that are known may be of other shapes when a step begins
        self._known = self._chain.described(self._chain.layout.num_stages - 1, None)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """One microbatch, in their order: the results of the stage before, or a number for the
        first stage.
        """
        index = next(self._numbers)
        if index == 0 and self.given is not None:
            return self.outputs
        return self._compute(index, given)

    def _compute(self, index: int, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._within is None:
            return self._called(index, given, self._take(index))
        found: list[tuple[Tensor, ...]] = []

        def answer(*args: Any, **kwargs: Any) -> Any:
            found.append(self._called(index, given, (args, kwargs)))
            assert self.header is not None, "it has computed"
            return tree_unflatten([*found[0]], self.header[0])

        self._within(index, answer)
        return found[0]

    def _called(self, index: int, given: tuple[Tensor, ...], call: Arguments) -> tuple[Tensor, ...]:
        if self._known is not None:
            self._chain.learn(self._known)
        arrived = None
        if self._stage:
            arrived = self._arrived(given)
        self._seeds.begin(self._stage, index)
        with self._context():
            arrive(tree_leaves(arrived))
            return self._results(index, self._chain.run(self._stage, index, call, arrived))

    def _results(self, index: int, result: Any) -> tuple[Tensor, ...]:
        """A result as it goes to the next stage, or to the loss."""
        layout = self._chain.layout
        leaves, form = tree_flatten(result)
        leave(leaves)
        self._chain.check_outputs(self._stage, leaves)
        header = form, [forms.of(one) for one in leaves]
        if self.header is not None and header != self.header:
            raise ModuleError(
                f"{layout.describe(self._stage)} returned tensors of {_shown(header)} "
                f"for microbatch {index}, and before of {_shown(self.header)}. With a schedule the "
                "results of a stage have the same shapes for all microbatches of a batch. Pad them "
                "alike, or leave schedule out."
            )
        self.header = header
        if self._stage == layout.num_stages - 1:
            # torch detaches in place what is no view
            return tuple(one.view_as(one) for one in leaves)
        made: tuple[Tensor, ...] = _Leaving.apply(self._anchor, *leaves)  # type: ignore[no-untyped-call]  # torch's
        return made

    def _arrived(self, given: tuple[Tensor, ...]) -> Any:
        """The result of the stage before, of its structure and dtypes."""
        assert self._given_header is not None
        form, kinds = self._given_header
        leaves = []
        for one, kind in zip(given, kinds, strict=True):
            leaf = one.to(kind.dtype)
            if self._splits and one.requires_grad:
                # Of a whole backward it is laid out as the tensor, which came in one piece.
                leaf = _Arrived.apply(one)  # type: ignore[no-untyped-call]  # torch's
            leaves.append(leaf)
        return tree_unflatten(leaves, form)

    def look_at(self, results: Any) -> None:
        """Split no backward of this stage, if torch couldn't."""
        if self._splits and self.pipeline_stage.dw_builder is None and graphs.uses_twice(results):
            self.splits_nothing()

    def splits_nothing(self) -> None:
        """Compute the gradients of weights with those of inputs, whatever the schedule."""
        self.pipeline_stage.dw_builder = _nothing_later


class _Leaving(torch.autograd.Function):
    """The results of a stage as they travel: in one piece, and with a graph, also where all before
    them is frozen.

    torch detaches them in place, so they are neither views nor what the stage's graph has saved.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors, of dtypes that every backend knows."""
        outputs = tuple(travelling(one.detach().contiguous()) for one in tensors)
        ctx.mark_non_differentiable(*(one for one in outputs if not can_learn(one)))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Their gradients."""
        return None, *gradients


class _Arrived(torch.autograd.Function):
    """A result of the stage before, whose gradient goes back in one piece."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The tensor as it is."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Its gradient."""
        return gradients[0].contiguous()


def _nothing_later() -> Callable[[], None]:
    return lambda: None


def travelling(tensor: Tensor) -> Tensor:
    """A tensor as it goes to another rank: backends know no booleans."""
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    return tensor


def _shown(header: Header) -> str:
    return ", ".join(map(str, header[1]))
