"""The stages of a pipeline as one call that all its ranks make, with gradients that find their way
back.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019: all microbatches forward, then all backward, and the loss on the whole batch in
between.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from core import ModuleError
from core_fsdp.forward import refuse_graph
from core_parallel.following import lengths
from core_parallel.following.mode import arrive, leave
from core_parallel.microbatches import pieces
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.modules import own_state
from core_parallel.modules.check_keys import is_in_turn, is_without_values
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.pipeline.stage_look import StageLook
from core_parallel.pipeline.whole_call import WholeCall
from core_parallel.stages import forms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.draws import Draws, Seeds
    from core_parallel.pipeline.peers import Peers
    from core_parallel.stages.layout import Layout
    from core_parallel.stages.replay import Known, Replay
    from core_parallel.stages.shards import Shards

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Computed:
    """One microbatch in one stage: what it was given and what it made of it, with the graph
    between.

    Attributes:
        inputs, outputs: the leaves.
        given_form, form: their structures.
        asked: the arguments of the model that want a gradient.
    """

    inputs: list[Any]
    given_form: Any
    outputs: list[Any]
    form: Any
    asked: list[Tensor]


@dataclass(slots=True)
class Pass:
    """One forward pass, as far as backward needs it.

    Attributes:
        sizes: samples of each microbatch.
        wanting: the tensors among the arguments that want a gradient.
        computed: by stage and microbatch.
        gradients: of what a stage was given, by the stage that made it and the microbatch.
        asked: what this rank's stages give to the gradients of the arguments, by microbatch.
        is_at_once: the forward was run once, so that what is before a stage is in the user's graph
            too.
        runs_back: backward of the stages is under way.
    """

    sizes: list[int | None] = field(default_factory=list)
    wanting: list[Tensor] = field(default_factory=list)
    computed: dict[tuple[int, int], Computed] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    asked: dict[int, list[Tensor]] = field(default_factory=dict)
    is_at_once: bool = False
    runs_back: bool = False

    def add(self, index: int, gradients: list[Tensor]) -> None:
        """Add what a stage gives to the gradients of the arguments, for a microbatch."""
        before = self.asked.get(index)
        if before:
            gradients = [one + other for one, other in zip(before, gradients, strict=True)]
        self.asked[index] = gradients


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
        self.layout, self.line, self.draws = layout, line, draws
        self._microbatches, self.context = microbatches, context
        self._headers: dict[Any, Any] = {}
        self._num_calls: Counter[tuple[int, bool]] = Counter()
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
        replay = self.layout.cut.replay
        if replay is None:
            return (self.answer or self.compute)(*args, **kwargs)
        replay.refuse(args, kwargs)
        if self.answer is not None:
            return replay.around(self.answer(*args, **kwargs), args, kwargs)
        number = self._number(args, kwargs)
        if number == 1 and len(self.layout.own_stages) == 1:
            return self._at_once(replay, args, kwargs)
        return replay.around(self._in_pieces(number, args, kwargs), args, kwargs)

    def forward_of(self, module: nn.Module) -> Callable[..., Any]:
        """The call of all stages in place of the forward of one of `layout.cut.called`."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.layout.cut.replay is not None:
                self.layout.cut.replay.owner = module
            return self(*args, **kwargs)

        return forward

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """All ranks of the pipeline. The result of all stages, on all ranks."""
        return self._in_pieces(self._number(args, kwargs), args, kwargs)

    def _number(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The number of microbatches of a call."""
        size = pieces.num_samples((args, kwargs))
        number = pieces.choose(self._microbatches, size, self.layout.num_stages)
        if number > 1 and pieces.is_unclear(
            (args, kwargs), self.num_samples, is_chosen=self._microbatches is not None
        ):
            number = 1
            self._warn_unclear()
        return number if self.peers is None else self.peers.least(number)

    def _in_pieces(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All ranks of the pipeline. The result of all stages, microbatch by microbatch."""
        cut = pieces.split((args, kwargs), number)
        made = Pass([pieces.num_samples(piece) for piece in cut], _wanting((args, kwargs)))
        with self.draws.of_stages() as seeds:
            self._run_stages(made, cut, seeds)
        return self._answer_of(made)

    def _at_once(self, replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All ranks of the pipeline. The result of the model, whose forward each rank runs once."""
        made = Pass([pieces.num_samples((args, kwargs))], is_at_once=True)
        if wanting := _wanting((args, kwargs)):
            made.wanting = list(_Given.apply(made, *wanting))  # type: ignore[no-untyped-call]  # torch's
            given = {id(one): other for one, other in zip(wanting, made.wanting, strict=True)}
            args, kwargs = tree_map(lambda leaf: given.get(id(leaf), leaf), (args, kwargs))
        (stage,) = self.layout.own_stages
        finish = partial(self._answer_of, made)
        with ExitStack() as until_end:
            exchange = WholeCall(self, made, (args, kwargs), finish, until_end)
            return replay.once(*self.layout.places_of(stage), args, kwargs, exchange)

    def _answer_of(self, made: Pass) -> Any:
        answer = self._share_answer(made)
        self.line.wait()
        if not torch.is_grad_enabled():
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

    @contextmanager
    def answering(self, answer: Callable[..., Any]) -> Iterator[None]:
        """A context in which a call of the module is answered by something else."""
        self.answer, before = answer, self.answer
        try:
            yield
        finally:
            self.answer = before

    # forward --------------------------------------------------------------------------------------

    def _run_stages(self, made: Pass, cut: Sequence[Any], seeds: Seeds) -> None:
        # With several stages a rank, everything is received before anything is sent: so the
        # messages between two ranks have one order, which some backends need.
        waits = len(self.layout.own_stages) > 1
        for stage in self.layout.own_stages:
            for index, piece in enumerate(cut):
                seeds.begin(stage, index)
                self._forward(made, stage, index, piece)
                if not waits:
                    self.give(made, stage, index, piece)
            if waits:
                for index, piece in enumerate(cut):
                    self.give(made, stage, index, piece)

    def _forward(self, made: Pass, stage: int, index: int, piece: Any) -> None:
        inputs, form = tree_flatten(piece)
        call = tree_unflatten([_leaf(one, is_argument=True) for one in inputs], form)
        asked, arrived = _wanting(call), None
        if stage:
            inputs, form = self.take(made, stage, index, piece)
            arrived = tree_unflatten(inputs, form)
        with self.context(), RecordedLogs().instead_of(self.layout.user):
            result = self.run(stage, index, call, arrived)
        self.keep(made, stage, index, (inputs, form), result, asked)

    def keep(
        self,
        made: Pass,
        stage: int,
        index: int,
        given: tuple[list[Any], Any],
        result: Any,
        asked: list[Tensor],
    ) -> None:
        """Keep what a stage has computed for a microbatch."""
        outputs, form = tree_flatten(result)
        self.check_outputs(stage, outputs)
        leave(outputs)
        made.computed[stage, index] = Computed(*given, outputs, form, asked)

    def run(self, stage: int, index: int, call: Any, arrived: Any) -> Any:
        """The result of a stage for a microbatch; see `Layout.run`.

        Raises:
            ModuleError: its parts change themselves with each microbatch, which one device does
                once a batch; or a Function has kept the size of one.
        """
        if index == 0 and (look := self.look(stage)) is not None:
            with look.noting():
                result = self.layout.run(stage, call, arrived)
            look.refuse_kept(result)
            return result
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

    def look(self, stage: int) -> StageLook | None:
        """A look at a call of a stage, if it is due: at the first ones, and from time to time."""
        key = stage, torch.is_grad_enabled()
        self._num_calls[key] += 1
        is_due = is_in_turn(self._num_calls[key]) and not is_without_values(self.layout.user)
        return StageLook(self.layout, stage) if is_due else None

    def take(self, made: Pass, stage: int, index: int, piece: Any) -> tuple[list[Any], Any]:
        """The outputs of the stage before for one microbatch, apart from the graph before them, and
        their structure.
        """
        owner = self.layout.owner(stage - 1)
        if owner == self.line.position:
            before = made.computed[stage - 1, index]
            return [_leaf(one) for one in before.outputs], before.form
        key = stage - 1, self._signature(piece)
        what = f"the output of stage {stage - 1} for microbatch {index}"
        if key not in self._headers:
            self._headers[key] = self.line.receive_object(owner, what)
        described, form = tree_flatten(self.learn(self._headers[key]))
        received = [self.line.receive(forms.like(one), owner, what) for one in described]
        arrive(received)
        return [_leaf(one) for one in received], form

    def give(self, made: Pass, stage: int, index: int, piece: Any) -> None:
        """Send the outputs of a stage for one microbatch to the rank of the next stage."""
        if stage == self.layout.num_stages - 1:
            return
        receiver = self.layout.owner(stage + 1)
        if receiver == self.line.position:
            return
        done, key = made.computed[stage, index], (stage, self._signature(piece))
        header = self.described(stage, tree_unflatten(done.outputs, done.form))
        if key not in self._headers:
            self._headers[key] = header
            self.line.send_object(header, receiver)
        elif self._headers[key][0] != header[0]:
            raise ModuleError(
                f"{self.layout.describe(stage)} returned tensors of {header[0]}, and before, for "
                f"arguments of the same shapes, of {self._headers[key][0]}. What goes from one "
                "stage to the next must follow from the shapes that the model is given."
            )
        for one in done.outputs:
            self.line.send(one, receiver)

    def described(self, stage: int, result: Any) -> tuple[Any, Known]:
        """The forms of a stage's result, and of the results of all parts so far, for the rank of
        the next stage.
        """
        replay = self.layout.cut.replay
        known = {} if replay is None else replay.known(self.layout.places_of(stage)[1])
        return forms.of(result), known

    def learn(self, header: tuple[Any, Known]) -> Any:
        """The forms of the result of a stage, of what `described` has returned on another rank."""
        result, known = header
        if self.layout.cut.replay is not None:
            self.layout.cut.replay.learn(known)
        return result

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

    def _share_answer(self, made: Pass) -> Any:
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
            flat = tree_leaves(answer)
            header = self.described(last, answer)
        header = self.line.share_object(header, owner, "the result of the model")
        described, form = tree_flatten(self.learn(header))
        likes = flat or [forms.like(one) for one in described]
        shared = [self.line.share(one, owner, "the result of the model") for one in likes]
        arrive(shared)
        return tree_unflatten(shared, form)

    # backward -------------------------------------------------------------------------------------

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
                retain_graph=made.is_at_once,
                inputs=None if accumulates else wanted,
            )
        found = [one.grad if one.grad is not None else torch.zeros_like(one) for one in wanted]
        made.add(index, found[len(given) :])
        return found[: len(given)]

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
            found = iter(
                [self.line.receive(one, owner, what) for one in outputs if _can_learn(one)]
            )
        return [next(found) if _can_learn(one) else None for one in outputs]

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


class _Answer(torch.autograd.Function):
    """The result of the model, as the end of a graph that goes over all ranks of the pipeline."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, made: Pass, num_outputs: int, anchor: Tensor, *tensors: Tensor
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


class _Given(torch.autograd.Function):
    """The arguments of the model, as its forward and the stages have them.

    What a stage gives to their gradients is added up over all ranks, and comes by `_Answer`.
    """

    @staticmethod
    def forward(ctx: Any, made: Pass, *tensors: Tensor) -> Any:
        """The tensors."""
        ctx.made = made
        ctx.set_materialize_grads(False)
        return tuple(one.view_as(one) for one in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Their gradients, where it is the user's backward."""
        if ctx.made.runs_back:
            return None, *[None for _ in gradients]
        return None, *gradients


def _wanting(tree: Any) -> list[Tensor]:
    """The tensors that want a gradient."""
    if not torch.is_grad_enabled():
        return []
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor) and one.requires_grad]


def _leaf(value: Any, *, is_argument: bool = False) -> Any:
    """An input of a stage, apart from the graph before it. The output of another stage always wants
    a gradient.
    """
    if not isinstance(value, Tensor):
        return value
    wants = value.requires_grad if is_argument else _can_learn(value)
    return value.detach().requires_grad_(wants and torch.is_grad_enabled())


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
    return tuple(
        forms.of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves
    ), str(form)
