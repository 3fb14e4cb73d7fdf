"""The stages of a pipeline as one call that all its ranks make, with gradients that find their way
back.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019: all microbatches forward, then all backward, and the loss on the whole batch in
between.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from core import ModuleError
from core_fsdp.forward import refuse_graph
from core_parallel.following import lengths
from core_parallel.following.mode import arrive, leave
from core_parallel.microbatches import pieces
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.modules import graphs, own_state
from core_parallel.modules.check_keys import CheckKeys
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.pipeline.forms import form_of, like_of
from core_parallel.stages import forward_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.draws import Draws, Seeds
    from core_parallel.pipeline.peers import Peers
    from core_parallel.stages.layout import Layout
    from core_parallel.stages.shards import Shards

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Computed:
    """One microbatch in one stage: what it was given and what it made of it, with the graph
    between.

    Attributes:
        inputs, outputs: the leaves.
        given_form, form: their structures.
    """

    inputs: list[Any]
    given_form: Any
    outputs: list[Any]
    form: Any


@dataclass(slots=True)
class _Pass:
    """One forward pass, as far as backward needs it.

    Attributes:
        sizes: samples of each microbatch.
        wanting: the tensors among the arguments that want a gradient.
        computed: by stage and microbatch.
        gradients: of what a stage was given, by the stage that made it (-1 for the arguments) and
            the microbatch.
    """

    sizes: list[int | None] = field(default_factory=list)
    wanting: list[Tensor] = field(default_factory=list)
    computed: dict[tuple[int, int], Computed] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)


class Chain:
    """The stages of one model over the ranks of one pipeline.

    Args:
        layout: the place of each stage.
        line: to the other ranks.
        draws: the random numbers of stages.
        microbatches: number of them; None for `"auto"`.
        context: makes what stages compute in, such as autocast.

    Attributes:
        num_samples: of the batch of the step that runs; None if nobody knows.
    """

    def __init__(
        self,
        layout: Layout,
        line: Line,
        draws: Draws,
        microbatches: int | None,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.layout, self.line, self._draws = layout, line, draws
        self._microbatches, self._context = microbatches, context
        self._called = layout.module
        self._keys: dict[nn.Module, CheckKeys] = {}
        self._headers: dict[Any, Any] = {}
        self._looked_at: set[int] = set()
        self._compared: set[int] = set()
        self._has_warned = False
        self.num_samples: int | None = None
        self.answer: Callable[..., Any] | None = None
        self.shards: Shards | None = None
        self.peers: Peers | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """All ranks of the pipeline, with the same arguments. The result of the model for them, on
        all ranks.

        Within a schedule, which runs the stages by itself, `answer` stands for it.
        """
        answer, replay = self.answer or self.compute, self.layout.cut.replay
        return answer(*args, **kwargs) if replay is None else replay.around(answer, args, kwargs)

    def forward_of(self, module: nn.Module) -> Callable[..., Any]:
        """The call of all stages in place of the forward of one of `layout.cut.called`."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._called = module
            return self(*args, **kwargs)

        return forward

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """All ranks of the pipeline. The result of all stages, on all ranks."""
        self.check(args, kwargs)
        learns = torch.is_grad_enabled()
        leaves = tree_flatten((args, kwargs))[0]
        made = _Pass(
            wanting=[
                one for one in leaves if isinstance(one, Tensor) and one.requires_grad and learns
            ]
        )
        size = pieces.num_samples((args, kwargs))
        number = pieces.choose(self._microbatches, size, self.layout.num_stages)
        if number > 1 and pieces.is_unclear(
            (args, kwargs), self.num_samples, is_chosen=self._microbatches is not None
        ):
            number = 1
            self._warn_unclear()
        cut = pieces.split(
            (args, kwargs), number if self.peers is None else self.peers.least(number)
        )
        made.sizes = [pieces.num_samples(piece) for piece in cut]
        with self._draws.of_stages() as seeds:
            self._run_stages(made, cut, seeds)
        answer = self._share_answer(made)
        self.line.wait()
        if not learns:
            return answer
        flat, form = tree_flatten(answer)
        # The anchor lets gradients come here also on a rank on which nothing else asks for them.
        anchor = torch.zeros((), requires_grad=True)
        whole: Any = _Answer.apply(self, made, len(flat), anchor, *flat, *made.wanting)  # type: ignore[no-untyped-call]  # torch's
        return tree_unflatten(list(whole), form)

    def _warn_unclear(self) -> None:
        if not self._has_warned and self.line.position == 0:
            self._has_warned = True
            _log.warning(
                "%s gets its batch whole, and not in microbatches: the second dim of an argument "
                "is as long as the batch, which may be a mask between positions, or samples behind "
                "a dim of time. If samples are the first dim of all arguments, say microbatches=N, "
                "and give a mask for each of them.",
                type(self.layout.module).__name__,
            )

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_due: bool = False) -> None:
        """Compare the forward of the module that was called with its parts, on meta, where
        `CheckKeys` says so.

        Args:
            args: of the call.
            kwargs: its named ones.
            is_due: compare them whatever the key.

        Raises:
            ModuleError: they aren't the same.
        """
        if self.layout.cut.replay is not None:
            return
        keys = self._keys.setdefault(self._called, CheckKeys(self.layout.user))
        if keys.is_due(str(_shapes((args, kwargs))), given=(args, kwargs)) or is_due:
            forward_check.check(self.layout, args, kwargs, self._called)

    @contextmanager
    def answering(self, answer: Callable[..., Any]) -> Iterator[None]:
        """A context in which a call of the module is answered by something else."""
        self.answer, before = answer, self.answer
        try:
            yield
        finally:
            self.answer = before

    # forward --------------------------------------------------------------------------------------

    def run_forward(self, cut: Sequence[Any], seeds: Seeds) -> dict[tuple[int, int], Computed]:
        """All ranks of the pipeline. Run microbatches forward, without gradients.

        Args:
            cut: the arguments of each, as a pair of tuple and dict.
            seeds: the random numbers of this pass.

        Returns:
            What this rank's stages have computed, by stage and microbatch.
        """
        made = _Pass()
        with torch.no_grad():
            self._run_stages(made, cut, seeds)
        self.line.wait()
        return made.computed

    def _run_stages(self, made: _Pass, cut: Sequence[Any], seeds: Seeds) -> None:
        # With several stages a rank, everything is received before anything is sent: so the
        # messages between two ranks have one order, which some backends need.
        waits = len(self.layout.own_stages) > 1
        for stage in self.layout.own_stages:
            for index, piece in enumerate(cut):
                seeds.begin(stage, index)
                self._forward(made, stage, index, piece)
                if not waits:
                    self._give(made, stage, index, piece)
            if waits:
                for index, piece in enumerate(cut):
                    self._give(made, stage, index, piece)

    def _forward(self, made: _Pass, stage: int, index: int, piece: Any) -> None:
        leaves, given_form = (
            tree_flatten(piece) if stage == 0 else self._take(made, stage, index, piece)
        )
        inputs = [_leaf(one, stage) for one in leaves]
        given = tree_unflatten(inputs, given_form)
        looks = stage not in self._looked_at and torch.is_grad_enabled()
        around = self.layout.modules_around() if looks else []
        before = graphs.kept(around)
        with self._context(), RecordedLogs().instead_of(self.layout.user):
            result = self.run(stage, index, given if stage == 0 else piece, given)
        outputs, form = tree_flatten(result)
        self.check_outputs(stage, outputs)
        leave(outputs)
        if looks:
            self._looked_at.add(stage)
            graphs.refuse_kept(self.layout.named_modules_of(stage))
            graphs.refuse_kept(around, before)
        made.computed[stage, index] = Computed(inputs, given_form, outputs, form)

    def run(self, stage: int, index: int, call: Any, arrived: Any) -> Any:
        """The result of a stage for a microbatch; see `Layout.run`.

        Raises:
            ModuleError: its parts change themselves with each microbatch, which one device does
                once a batch; or a Function has kept the size of one.
        """
        if (
            index != 1
            or stage in self._compared
            or not (self.layout.module.training and torch.is_grad_enabled())
        ):
            return self.layout.run(stage, call, arrived)
        self._compared.add(stage)
        named = [*self.layout.named_modules_of(stage), *self.layout.modules_around()]
        before = own_state.state_of(named)
        with uncompiled(), lengths.SizesOfSamples(pieces.num_samples((call, arrived))):
            result = self.layout.run(stage, call, arrived)
        lengths.refuse_in_graph(tree_leaves(result), "of which a microbatch has a part")
        if places := own_state.changed(before, own_state.state_of(named)):
            shown = ", ".join(map(repr, own_state.names_of(places)))
            raise ModuleError(
                f"{self.layout.describe(stage)} changes {shown} with each microbatch, which one "
                "device does once a batch: a statistic, or a count. Say microbatches=1, without a "
                "schedule; or update it in the step, after the call."
            )
        return result

    def _take(self, made: _Pass, stage: int, index: int, piece: Any) -> tuple[list[Any], Any]:
        """The outputs of the stage before, for one microbatch."""
        owner = self.layout.owner(stage - 1)
        if owner == self.line.position:
            before = made.computed[stage - 1, index]
            return before.outputs, before.form
        key, what = (
            (stage - 1, self._signature(piece)),
            f"the output of stage {stage - 1} for microbatch {index}",
        )
        if key not in self._headers:
            self._headers[key] = self.line.receive_object(owner, what)
        described, form = tree_flatten(self._headers[key])
        received = [self.line.receive(like_of(one), owner, what) for one in described]
        arrive(received)
        return received, form

    def _give(self, made: _Pass, stage: int, index: int, piece: Any) -> None:
        if stage == self.layout.num_stages - 1:
            return
        receiver = self.layout.owner(stage + 1)
        if receiver == self.line.position:
            return
        done, key = made.computed[stage, index], (stage, self._signature(piece))
        header = tree_unflatten([form_of(one) for one in done.outputs], done.form)
        if key not in self._headers:
            self._headers[key] = header
            self.line.send_object(header, receiver)
        elif self._headers[key] != header:
            raise ModuleError(
                f"{self.layout.describe(stage)} returned tensors of {header}, and before, for "
                f"arguments of the same shapes, of {self._headers[key]}. What goes from one stage "
                "to the next must follow from the shapes that the model is given."
            )
        for one in done.outputs:
            self.line.send(one, receiver)

    def _signature(self, piece: Any) -> Any:
        """A key of what shapes between stages follow from, as far as all ranks know it."""
        return *_shapes(piece), self.layout.module.training, torch.is_grad_enabled()

    def check_outputs(self, stage: int, outputs: Sequence[Any]) -> None:
        """Refuse results of a stage that can't go to another rank.

        Raises:
            ModuleError: one of them is no tensor.
        """
        for one in outputs:
            if not isinstance(one, Tensor):
                raise ModuleError(
                    f"{self.layout.describe(stage)} returned a {type(one).__name__}; expected "
                    "tensors, in lists, tuples and dicts. Of a model that can't be changed, such "
                    "as an encoder with a decoder, make modules that hand on tensors alone, and "
                    "name them by pipeline()."
                )

    def _share_answer(self, made: _Pass) -> Any:
        """All ranks of the pipeline. The last stage's results, put together."""
        last = self.layout.num_stages - 1
        owner, header = self.layout.owner(last), None
        flat: list[Any] = []
        if owner == self.line.position:
            done = [made.computed[last, index] for index in range(len(made.sizes))]
            with torch.no_grad():
                answer = pieces.join(
                    [tree_unflatten(one.outputs, one.form) for one in done], made.sizes
                )
            flat, form = tree_flatten(answer)
            header = tree_unflatten([form_of(one) for one in flat], form)
        described, form = tree_flatten(
            self.line.share_object(header, owner, "the result of the model")
        )
        likes = flat or [like_of(one) for one in described]
        shared = [self.line.share(one, owner, "the result of the model") for one in likes]
        arrive(shared)
        return tree_unflatten(shared, form)

    # backward -------------------------------------------------------------------------------------

    def backward(
        self, made: _Pass, gradients: Sequence[Tensor | None], *, accumulates: bool
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
        made: _Pass,
        stage: int,
        index: int,
        incoming: list[Tensor | None],
        accumulates: bool,
    ) -> list[Tensor]:
        """The gradients of what the stage was given."""
        done = made.computed.pop((stage, index))
        if stage < self.layout.num_stages - 1:
            incoming = self._take_gradients(made, stage, index, done.outputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(done.outputs, incoming, strict=True)
            if output.requires_grad and gradient is not None
        ]
        given = [one for one in done.inputs if isinstance(one, Tensor) and one.requires_grad]
        if pairs and (given or accumulates):
            torch.autograd.backward(
                [output for output, _ in pairs],
                [gradient for _, gradient in pairs],
                inputs=None if accumulates else given,
            )
        return [one.grad if one.grad is not None else torch.zeros_like(one) for one in given]

    def _give_back(self, made: _Pass, stage: int, index: int, found: list[Tensor]) -> None:
        if stage == 0 or (owner := self.layout.owner(stage - 1)) == self.line.position:
            made.gradients[stage - 1, index] = found
            return
        for one in found:
            self.line.send(one, owner)

    def _take_gradients(
        self, made: _Pass, stage: int, index: int, outputs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients of what a stage has handed on: of every tensor that can have one."""
        owner = self.layout.owner(stage + 1)
        if owner == self.line.position:
            found = iter(made.gradients.pop((stage, index)))
        else:
            what = f"the gradient of stage {stage}'s output for microbatch {index}"
            found = iter(
                [self.line.receive(one, owner, what) for one in outputs if _can_learn(one)]
            )
        return [next(found) if _can_learn(one) else None for one in outputs]

    def _share_gradients(self, made: _Pass) -> list[Tensor]:
        """All ranks of the pipeline. The gradients of the arguments, which the first stage has
        computed.
        """
        owner, shared = self.layout.owner(0), []
        for position, like in enumerate(made.wanting):
            whole = like
            if owner == self.line.position:
                whole = _whole(
                    [made.gradients[-1, index][position] for index in range(len(made.sizes))], like
                )
            shared.append(self.line.share(whole, owner))
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


class _Answer(torch.autograd.Function):
    """The result of the model, as the end of a graph that goes over all ranks of the pipeline."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, made: _Pass, num_outputs: int, anchor: Tensor, *tensors: Tensor
    ) -> Any:
        """The first `num_outputs` tensors; the others are the arguments that want gradients."""
        ctx.chain, ctx.made, ctx.num_outputs = chain, made, num_outputs
        outputs = [one.view_as(one) for one in tensors[:num_outputs]]
        ctx.mark_non_differentiable(*(one for one in outputs if not _can_learn(one)))
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """All ranks of the pipeline."""
        if not ctx.made.computed:
            raise ModuleError(
                "backward was called twice on one result of the model, whose graph over the ranks "
                "of a pipeline is gone by then. Add up the losses, and call it once."
            )
        refuse_graph(
            "Over the ranks of a pipeline there is no graph of it. Compute it in a part of the "
            "model, or leave pipeline out."
        )
        # the anchor's own node, which `torch.autograd.grad` of something else leaves out
        accumulates = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        found = ctx.chain.backward(ctx.made, gradients, accumulates=accumulates)
        return (None, None, None, None, *([None] * ctx.num_outputs), *found)


def _leaf(value: Any, stage: int) -> Any:
    """An input of a stage, apart from the graph before it. The output of another stage always wants
    a gradient.
    """
    if not isinstance(value, Tensor):
        return value
    learns = torch.is_grad_enabled() and (value.requires_grad if stage == 0 else _can_learn(value))
    return value.detach().requires_grad_(learns)


def _can_learn(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


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


def _shapes(piece: Any) -> tuple[Any, str]:
    leaves, form = tree_flatten(piece)
    return tuple(form_of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves), str(
        form
    )
