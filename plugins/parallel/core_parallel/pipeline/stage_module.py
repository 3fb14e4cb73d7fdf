"""One stage of a model, as torch's pipelines take it: tensors in, tensors out."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from core import ModuleError
from core_parallel.modules import graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from core_parallel.pipeline.chain import Chain, Computed
    from core_parallel.pipeline.draws import Seeds

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class StageModule(nn.Module):
    """The parts of one stage, and parameters of no part, which the user's step may use beside them.

    Args:
        chain: of the model.
        stage: its number.
        like: what the stage has computed for one microbatch of these shapes.
        context: makes what stages compute in, such as autocast.
        splits: backward may come in two halves.
    """

    def __init__(
        self,
        chain: Chain,
        stage: int,
        like: Computed,
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
        self._given_form, self._given = (
            like.given_form,
            [one.dtype for one in like.inputs if isinstance(one, Tensor)],
        )
        # the newest ones that are known may be of other shapes when a step begins
        self._known = chain.described(chain.layout.num_stages - 1, None)
        self._form, self._shapes = like.form, [_shape_of(one) for one in like.outputs]
        self._named, self._around = (
            chain.layout.named_modules_of(stage),
            chain.layout.modules_around(),
        )
        self.pipeline_stage: Any = None
        self._seeds: Seeds | None = None
        self._take: Callable[[int], Arguments] | None = None
        self._numbers: Iterator[int] = iter(())

    def begin(self, seeds: Seeds, take: Callable[[int], Arguments]) -> None:
        """A step begins.

        Args:
            seeds: its random numbers.
            take: the arguments of the model for a microbatch, which the first stage asks for; or
                all, see `Layout.run`.
        """
        self._seeds, self._take, self._numbers = seeds, take, count()

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """One microbatch, in their order: the results of the stage before, or a number for the
        first stage.
        """
        assert self._seeds is not None
        assert self._take is not None
        index, layout = next(self._numbers), self._chain.layout
        self._chain.learn(self._known)
        call = self._take(index) if self._stage == 0 or layout.needs_call else None
        arrived = self._arrived(given) if self._stage else None
        self._seeds.begin(self._stage, index)
        before = graphs.kept(self._around) if index == 0 else set()
        with self._context():
            result = self._chain.run(self._stage, index, call, arrived)
        leaves, form = tree_flatten(result)
        self._chain.check_outputs(self._stage, leaves)
        if index == 0:
            graphs.refuse_kept(self._named)
            graphs.refuse_kept(self._around, before)
            self.look_at(leaves)
        if (shapes := [_shape_of(one) for one in leaves]) != self._shapes or form != self._form:
            raise ModuleError(
                f"{layout.describe(self._stage)} returned tensors of {shapes} "
                f"for microbatch {index}, and before of {self._shapes}. With a schedule the "
                "results of a stage have the same shapes for all microbatches of a batch. Pad them "
                "alike, or leave schedule out."
            )
        if self._stage == layout.num_stages - 1:
            # torch detaches in place what is no view
            return tuple(one.view_as(one) for one in leaves)
        made: tuple[Tensor, ...] = _Leaving.apply(self._anchor, *leaves)  # type: ignore[no-untyped-call]  # torch's
        return made

    def _arrived(self, given: tuple[Tensor, ...]) -> Any:
        """The result of the stage before, of its structure and dtypes."""
        leaves = [
            self._with_gradient(one) if one.requires_grad else one.to(dtype)
            for one, dtype in zip(given, self._given, strict=True)
        ]
        return tree_unflatten(leaves, self._given_form)

    def _with_gradient(self, one: Tensor) -> Tensor:
        # Of a whole backward it is laid out as the tensor, which came in one piece.
        return _Arrived.apply(one) if self._splits else one  # type: ignore[no-untyped-call]  # torch's

    def look_at(self, results: Any) -> None:
        """Split no backward of this stage, if torch couldn't: the first microbatch shows it."""
        if self._splits and self.pipeline_stage.dw_builder is None and graphs.uses_twice(results):
            self.splits_nothing()

    def splits_nothing(self) -> None:
        """Compute the gradients of weights with those of inputs, whatever the schedule."""
        self.pipeline_stage.dw_builder = _nothing_later

    def answer(self, leaves: tuple[Tensor, ...]) -> Any:
        """The last stage's result, of the structure that the model returns."""
        return tree_unflatten(list(leaves), self._form)


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
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def can_learn(tensor: Tensor) -> bool:
    """True if it may have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def _shape_of(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype
