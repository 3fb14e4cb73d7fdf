"""The stages of a pipeline as one call that all its ranks make, with gradients that find their way
back.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019: all microbatches forward, then all backward, and the loss on the whole batch in
between.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from core import ModuleError
from core.contract import refuse
from core_parallel.following import lengths
from core_parallel.following.mode import arrive, leave
from core_parallel.microbatches import pieces
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.modules import own_state
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.modules.followed_calls import has_compiled, is_without_values
from core_parallel.pipeline import whole_call
from core_parallel.pipeline.backward_pass import RunsBackward
from core_parallel.pipeline.forward_pass import Computed, Pass, leaf_of, replaced, wanting
from core_parallel.pipeline.result_graph import Answer
from core_parallel.pipeline.stage_look import StageLook
from core_parallel.stages import forms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.draws import Draws, Seeds
    from core_parallel.pipeline.peers import Peers
    from core_parallel.stages.layout import Layout
    from core_parallel.stages.replay import Known

_log = logging.getLogger(__name__)


class Chain(RunsBackward):
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
        self._looked: dict[tuple[int, bool], set[Any]] = {}
        self._is_compiled: bool | None = None
        self._compared: set[int] = set()
        self._has_warned = False
        self.num_samples: int | None = None
        self.answer: Callable[..., Any] | None = None
        self.peers: Peers | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """All ranks of the pipeline, with the same arguments. The result of the model for them, on
        all ranks.

        Within a schedule, which runs the stages by itself, `answer` stands for it.
        """
        replay = self.layout.cut.replay
        replay.refuse(args, kwargs)
        if self.answer is not None:
            return replay.around(self.answer(*args, **kwargs), args, kwargs)
        number = self._number(args, kwargs)
        if number == 1 and len(self.layout.own_stages) == 1:
            return whole_call.call(self, args, kwargs)
        return replay.around(self._in_pieces(number, args, kwargs), args, kwargs)

    def forward_of(self, module: nn.Module) -> Callable[..., Any]:
        """The call of all stages in place of the forward of one of `layout.cut.called`."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.layout.cut.replay.owner = module
            return self(*args, **kwargs)

        return forward

    def _number(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The number of microbatches of a call."""
        size = pieces.num_samples((args, kwargs))
        number = pieces.choose(self._microbatches, size, self.layout.num_stages)
        if number > 1 and pieces.is_unclear(
            (args, kwargs), self.num_samples, is_chosen=self._microbatches is not None
        ):
            number = 1
            self._warn_unclear()
        if self.peers is not None:
            number = self.peers.least(number)
        return number

    def _in_pieces(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All ranks of the pipeline. The result of all stages, microbatch by microbatch."""
        asked = wanting((args, kwargs))
        leaves = [one.detach().requires_grad_() for one in asked]
        cut = pieces.split(replaced((args, kwargs), asked, leaves), number)
        made = Pass([pieces.num_samples(piece) for piece in cut], asked, leaves)
        with self.draws.of_stages() as seeds:
            self._run_stages(made, cut, seeds)
        return self.answer_of(made)

    def answer_of(self, made: Pass) -> Any:
        """All ranks of the pipeline. The result of the last part, on all ranks, with a graph."""
        answer = self._share_answer(made)
        self.line.wait()
        if not torch.is_grad_enabled():
            return answer
        flat, form = tree_flatten(answer)
        # The anchor lets gradients come here also on a rank on which nothing else asks for them.
        anchor = torch.zeros((), requires_grad=True)
        whole: Any = Answer.apply(self, made, len(flat), anchor, *flat, *made.wanting)  # type: ignore[no-untyped-call]  # torch's
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
        arrived = None
        if stage:
            arrived = self.take(made, stage, index, piece)
        with self.context(), RecordedLogs().instead_of(self.layout.user):
            result = self.run(stage, index, piece, arrived)
        self.keep(made, stage, index, arrived, result)

    def keep(self, made: Pass, stage: int, index: int, arrived: Any, result: Any) -> None:
        """Keep what a stage has computed for a microbatch."""
        outputs, form = tree_flatten(result)
        self.check_outputs(stage, outputs)
        leave(outputs)
        made.computed[stage, index] = Computed(outputs, form, wanting(arrived))

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
            return self._looked_at(stage, call, arrived)
        self._compared.add(stage)
        named = [*self.layout.named_modules_of(stage), *self.layout.modules_around()]
        before = own_state.state_of(named)
        with uncompiled(), lengths.SizesOfSamples(pieces.num_samples((call, arrived))):
            result = self._looked_at(stage, call, arrived)
        lengths.refuse_in_graph(tree_leaves(result), "of which a microbatch has a part")
        if places := own_state.changed(before, own_state.state_of(named)):
            shown = ", ".join(map(repr, own_state.names_of(places)))
            text = (
                f"{self.layout.describe(stage)} changes {shown} with each microbatch, which one "
                "device does once a batch: a statistic, or a count. Say microbatches=1, without a "
                "schedule; or update it in the step, after the call."
            )
            refuse(ModuleError(text), axis="pipeline")
        return result

    def _looked_at(self, stage: int, call: Any, arrived: Any) -> Any:
        if (look := self.look(stage)) is None:
            return self.layout.run(stage, call, arrived)
        with look.noting():
            result = self.layout.run(stage, call, arrived)
        look.refuse_kept(result)
        return result

    def look(self, stage: int) -> StageLook | None:
        """A look at a call of a stage: at each, or the first ones of a stage that is compiled."""
        key = stage, torch.is_grad_enabled()
        if self._is_compiled is None:
            self._is_compiled = has_compiled(self.layout.user)
        if is_without_values(self.layout.user) or (self._is_compiled and key in self._looked):
            return None
        return StageLook(self.layout, stage, self._looked.setdefault(key, set()))

    def take(self, made: Pass, stage: int, index: int, piece: Any) -> Any:
        """The result of the stage before for one microbatch, apart from the graph before it."""
        owner = self.layout.owner(stage - 1)
        if owner == self.line.position:
            before = made.computed[stage - 1, index]
            return tree_unflatten([leaf_of(one) for one in before.outputs], before.form)
        key = stage - 1, self._signature(piece)
        what = f"the output of stage {stage - 1} for microbatch {index}"
        if key not in self._headers:
            self._headers[key] = self.line.receive_object(owner, what)
        described, form = tree_flatten(self.learn(self._headers[key]))
        received = [self.line.receive(forms.like(one), owner, what) for one in described]
        arrive(received)
        return tree_unflatten([leaf_of(one) for one in received], form)

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
        return forms.of(result), self.layout.cut.replay.known(self.layout.places_of(stage)[1])

    def learn(self, header: tuple[Any, Known]) -> Any:
        """The forms of the result of a stage, of what `described` has returned on another rank."""
        result, known = header
        self.layout.cut.replay.learn(known)
        return result

    def _signature(self, piece: Any) -> Any:
        """A key of what shapes between stages follow from, as far as all ranks know it."""
        return repr(forms.of(piece)), self.layout.module.training, torch.is_grad_enabled()

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
