"""Backward over the stages of a pipeline, and the gradients of what all its ranks have."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core_parallel.pipeline.forward_pass import can_learn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.forward_pass import Pass
    from core_parallel.stages.layout import Layout
    from core_parallel.stages.shards import Shards


class RunsBackward:
    """The backward of a `Chain`.

    Attributes:
        layout: the place of each stage.
        line: to the other ranks.
        shards: of the parameters of this rank's stages.
    """

    layout: Layout
    line: Line
    shards: Shards

    def backward(
        self, made: Pass, gradients: Sequence[Tensor | None], *, accumulates: bool
    ) -> list[Tensor]:
        """All ranks of the pipeline. Compute the gradients of the arguments that want some.

        Args:
            made: the forward pass.
            gradients: of the tensors that the model returned; those on the rank of the last stage
                count.
            accumulates: those of parameters are added to their `grad`, as `backward()` does and
                `torch.autograd.grad` doesn't.

        Returns:
            A gradient for each of the arguments that want one: the sum over all stages.
        """
        cut = [_cut(gradient, made.sizes) for gradient in gradients]
        waits = len(self.layout.own_stages) > 1  # see `_run_stages`
        made.runs_back = True
        with self.added_up():
            with self.shards.held() as reduces:
                for stage in reversed(self.layout.own_stages):
                    found = {}
                    for index in reversed(range(len(made.sizes))):
                        incoming = [column[index] for column in cut]
                        found[index] = self._backward(made, stage, index, incoming, accumulates)
                        if not waits:
                            self._give_back(made, stage, index, found.pop(index))
                    for index, gradients_of_inputs in found.items():
                        self._give_back(made, stage, index, gradients_of_inputs)
            if reduces and accumulates:
                self.shards.reduce()
            self.shards.reshard()
        made.runs_back = False
        self.line.wait()
        return [self.line.add_up(_gradient(one).contiguous()) for one in made.leaves]

    def _backward(
        self,
        made: Pass,
        stage: int,
        index: int,
        incoming: list[Tensor | None],
        accumulates: bool,
    ) -> list[Tensor]:
        """The gradients of what the stage before has handed on."""
        done = made.computed.pop((stage, index))
        if stage < self.layout.num_stages - 1:
            incoming = self._take_gradients(made, stage, index, done.outputs)
        outputs, gradients = [], []
        for output, gradient in zip(done.outputs, incoming, strict=True):
            if output.requires_grad and gradient is not None:
                outputs.append(output)
                gradients.append(gradient)
        inputs = None
        if not accumulates:
            inputs = [*done.given, *made.leaves]
        if outputs and inputs != []:
            keeps = made.is_at_once and self._shares_graph(made)
            torch.autograd.backward(outputs, gradients, retain_graph=keeps, inputs=inputs)
        return [_gradient(one) for one in done.given]

    def _shares_graph(self, made: Pass) -> bool:
        """True if what is before a stage may have a graph, which the user's backward needs too."""
        return bool(made.wanting) or any(one.requires_grad for one in self.layout.outside())

    def _give_back(self, made: Pass, stage: int, index: int, found: list[Tensor]) -> None:
        if stage == 0:
            return
        owner = self.layout.owner(stage - 1)
        if owner == self.line.position:
            made.gradients[stage - 1, index] = found
            return
        for one in found:
            self.line.send(one, owner)

    def _take_gradients(
        self, made: Pass, stage: int, index: int, outputs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients of what a stage has handed on: of every tensor that can have one."""
        owner = self.layout.owner(stage + 1)
        what = f"the gradient of stage {stage}'s output for microbatch {index}"
        own = iter(made.gradients.pop((stage, index), ()))
        found: list[Tensor | None] = []
        for one in outputs:
            if not can_learn(one):
                found.append(None)
            elif owner == self.line.position:
                found.append(next(own))
            else:
                found.append(self.line.receive(one, owner, what))
        return found

    @contextmanager
    def added_up(self) -> Iterator[None]:
        """All ranks of the pipeline. Add up what the stages in here give to the gradients of
        parameters of no part.
        """
        outside = [one for one in self.layout.outside() if one.requires_grad]
        added = {}
        with set_aside(outside):
            yield
            if not outside:
                return
            gave = [float(one.grad is not None) for one in outside]
            counts = self.line.add_up(torch.tensor(gave, device=self.line.device)).tolist()
            for one, count in zip(outside, counts, strict=True):
                if count:
                    added[one] = self.line.add_up(_gradient(one))
        add_to(added)


@contextmanager
def set_aside(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A context in which parameters have no gradients, and afterwards those of before."""
    before = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    try:
        yield
    finally:
        for one, earlier in zip(parameters, before, strict=True):
            one.grad = earlier


def add_to(gradients: Mapping[Tensor, Tensor]) -> None:
    """Add gradients to those that parameters have."""
    for parameter, gradient in gradients.items():
        if parameter.grad is not None:
            gradient = parameter.grad + gradient
        parameter.grad = gradient


def _cut(gradient: Tensor | None, sizes: Sequence[int | None]) -> Sequence[Tensor | None]:
    if gradient is None or len(sizes) == 1:
        return [gradient] * len(sizes)
    return [*torch.split(gradient, [size or 0 for size in sizes])]


def _gradient(one: Tensor) -> Tensor:
    if one.grad is None:
        return torch.zeros_like(one)
    return one.grad
