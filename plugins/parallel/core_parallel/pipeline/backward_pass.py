"""Backward over the stages of a pipeline, and the gradients of what all its ranks have."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core_parallel.pipeline.forward_pass import can_learn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    shards: Shards | None

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
            A gradient for each of the arguments that want one.
        """
        cut = [_cut(gradient, made.sizes) for gradient in gradients]
        waits = len(self.layout.own_stages) > 1  # see `_run_stages`
        made.runs_back = True
        with self.added_up(), self._reduced(accumulates):
            for stage in reversed(self.layout.own_stages):
                found = {}
                for index in reversed(range(len(made.sizes))):
                    incoming = [column[index] for column in cut]
                    found[index] = self._backward(made, stage, index, incoming, accumulates)
                    if not waits:
                        self._give_back(made, stage, index, found.pop(index))
                for index, gradients_of_inputs in found.items():
                    self._give_back(made, stage, index, gradients_of_inputs)
        made.runs_back = False
        self.line.wait()
        return self._share_gradients(made)

    @contextmanager
    def _reduced(self, accumulates: bool) -> Iterator[None]:
        """All ranks of the pipeline. Reduce gradients of what is in shards after all microbatches,
        if there are any.
        """
        if self.shards is None:
            yield
            return
        with self.shards.held() as reduces:
            yield
        if reduces and accumulates:
            self.shards.reduce()
        self.shards.reshard()

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
        pairs = [
            (output, gradient)
            for output, gradient in zip(done.outputs, incoming, strict=True)
            if output.requires_grad and gradient is not None
        ]
        arrived = [] if stage == 0 else done.inputs
        given = [one for one in arrived if isinstance(one, Tensor) and one.requires_grad]
        wanted = [*given, *done.asked]
        for one in wanted:
            one.retain_grad()
        if pairs and (wanted or accumulates):
            torch.autograd.backward(
                [output for output, _ in pairs],
                [gradient for _, gradient in pairs],
                retain_graph=made.is_at_once and self._shares_graph(made),
                inputs=None if accumulates else wanted,
            )
        found = [one.grad if one.grad is not None else torch.zeros_like(one) for one in wanted]
        made.add(index, found[len(given) :])
        return found[: len(given)]

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
        if owner == self.line.position:
            found = iter(made.gradients.pop((stage, index)))
        else:
            what = f"the gradient of stage {stage}'s output for microbatch {index}"
            found = iter([self.line.receive(one, owner, what) for one in outputs if can_learn(one)])
        return [next(found) if can_learn(one) else None for one in outputs]

    def _share_gradients(self, made: Pass) -> list[Tensor]:
        """All ranks of the pipeline. The gradients of the arguments: the sum over all stages."""
        of_pieces = [made.asked[index] for index in range(len(made.sizes))]
        shared = []
        for position, like in enumerate(made.wanting):
            found = [one[position] for one in of_pieces if one]
            whole = _whole(found, like) if found else torch.zeros_like(like)
            shared.append(self.line.add_up(whole.contiguous()))
        return shared

    @contextmanager
    def added_up(self) -> Iterator[None]:
        """All ranks of the pipeline. Add up what the stages in here give to the gradients of
        parameters of no part.
        """
        outside = [one for one in self.layout.outside() if one.requires_grad]
        before = [one.grad for one in outside]
        for one in outside:
            one.grad = None
        yield
        if not outside:
            return
        gave = torch.tensor(
            [float(one.grad is not None) for one in outside], device=self.line.device
        )
        for one, earlier, count in zip(
            outside, before, self.line.add_up(gave).tolist(), strict=True
        ):
            if count:
                added = self.line.add_up(torch.zeros_like(one) if one.grad is None else one.grad)
                one.grad = added if earlier is None else earlier + added
            else:
                one.grad = earlier


def _cut(gradient: Tensor | None, sizes: Sequence[int | None]) -> Sequence[Tensor | None]:
    if gradient is None or len(sizes) == 1:
        return [gradient] * len(sizes)
    return list(torch.split(gradient, [size or 0 for size in sizes]))


def _whole(found: Sequence[Tensor], like: Tensor) -> Tensor:
    """The gradient of an argument: cut as it was, or given to all microbatches whole."""
    if len(found) == 1:
        return found[0]
    return (
        torch.stack(list(found)).sum(0) if found[0].shape == like.shape else torch.cat(list(found))
    )
