"""A training step through one of torch's schedules, in which the user's step stays as it is.

For each microbatch the first stage runs the step until it calls the model, takes the arguments, and
leaves it. The last stage runs the step with the stage's result as the answer of that call, so that
the loss comes to be there; torch calls that its loss function.

Of a batch of new shapes the first microbatch goes through all stages before torch's schedule
begins: so what goes between them is known, and an error of the step is one on all ranks.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.data import size_of
from core_parallel.communication import averages
from core_parallel.experts.expert_modules import is_expert
from core_parallel.following.marks import put_as
from core_parallel.following.microbatches import FollowedMicrobatch
from core_parallel.microbatches import batches
from core_parallel.microbatches.counters import Counters
from core_parallel.microbatches.recorded_logs import replay
from core_parallel.modules.absent import is_absent
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.modules.followed_calls import FollowedCalls
from core_parallel.pipeline import (
    arguments,
    first_microbatch,
    last_stage,
    schedule_errors,
    user_step,
)
from core_parallel.pipeline.backward_pass import set_aside
from core_parallel.pipeline.scheduled_loss import ScheduledLoss
from core_parallel.pipeline.scheduled_run import ScheduledRun
from core_parallel.pipeline.stage_module import StageModule
from core_parallel.pipeline.watched_stage import WatchedStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from core_parallel.context.sequence import Context
    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.draws import Draws
    from core_parallel.pipeline.last_stage import Described
    from core_parallel.pipeline.schedules import Schedule
    from core_parallel.pipeline.stage_module import Arguments

_KEPT = 4  # shapes for which a schedule stays set up, with the buffers that it receives into


@dataclass(slots=True)
class _Runner:
    """A schedule that is set up for batches of one shape.

    Attributes:
        stages: of this rank, by number.
        schedule: torch's.
        described: the numbers that the last stage had to tell in the step before.
        length: of this rank's part of a sequence.
    """

    stages: dict[int, StageModule]
    schedule: Any = None
    described: Described | None = None
    length: int = 0


class ScheduledStep:
    """Steps of one model through one schedule.

    Args:
        chain: of the model.
        schedule: which one.
        draws: the random numbers of stages.
        microbatches: how many; None for `"auto"`.
        context: makes what stages and the user's step compute in, such as autocast.
        scale: gives the number by which the precision multiplies losses before backward.
        sequence: the call of the model on a part of the sequence; None if it is whole.

    Attributes:
        last: number of the last stage.
    """

    def __init__(
        self,
        chain: Chain,
        schedule: Schedule,
        draws: Draws,
        microbatches: int | None,
        context: Callable[[], AbstractContextManager[Any]],
        scale: Callable[[], float],
        sequence: Context | None,
    ) -> None:
        self._chain = chain
        self._schedule = schedule
        self._draws = draws
        self._microbatches = microbatches
        self._context = context
        self._scale = scale
        self._sequence = sequence
        self._runners: dict[Any, _Runner] = {}
        self._step_context = context
        self._losses: dict[int, Tensor] = {}  # of microbatches, until torch asks for them
        self._calls = FollowedCalls(chain.layout.user)
        self.last = chain.layout.num_stages - 1

    @property
    def stages(self) -> list[WatchedStage]:
        """The stages of this rank in every schedule that is set up."""
        return [
            stage.pipeline_stage
            for runner in self._runners.values()
            for stage in runner.stages.values()
        ]

    def __call__(
        self,
        step: Callable[[Any], Any],
        batch: Any,
        module: nn.Module,
        step_context: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Any:
        """All ranks of the pipeline. The loss of a batch, whose gradients have been computed.

        Its graph scales these, and adds them to those that were there before. A batch that can't be
        cut as the schedule needs it goes through all stages at once, see `Chain`.

        Args:
            step: the user's, for a batch.
            batch: of all samples.
            module: the user's, which may log.
            step_context: makes what the step computes in; None is that of the stages.

        Returns:
            What the user's step returns: the loss, or a dict with it and perhaps its weight; or
            None.
        """
        self._step_context = step_context or self._context
        layout = self._chain.layout
        divided = size = size_of(batch)
        key_of_peers = None
        if self._chain.peers is not None:
            divided, key_of_peers = self._chain.peers.common_batch(size, batches.shapes_of(batch))
        number = self._schedule.choose(self._microbatches, divided, layout.size, layout.num_stages)
        if number is None or size is None or batches.has_mask(batch, size):
            return step(batch)
        key = (number, batches.shapes_of(batch), key_of_peers, layout.module.training)
        runner = self._runners.pop(key, None) or _Runner({})
        with self._draws.of_stages() as seeds, self._unfollowed():
            cut = batches.cut_batch(batch, size, number)
            run = ScheduledRun(
                step,
                cut,
                seeds,
                self._scale(),
                Counters(module),
                is_followed=self._calls.has(batch),
            )
            with run.logs.instead_of(module):
                gradients = self._run(runner, run)
        self._runners[key] = runner
        if len(self._runners) > _KEPT:
            self._runners.pop(next(iter(self._runners)))
        return self._finish(runner, run, module, gradients)

    def _begin(self, runner: _Runner, run: ScheduledRun) -> None:
        """All ranks of the pipeline. Compute the first microbatch forward, and what its step makes
        of it.
        """
        chain = self._chain
        layout = chain.layout
        stages = {
            stage: StageModule(
                chain,
                stage,
                self._context if stage == self.last else self._stage_context,
                splits=self._schedule.splits_backward,
            )
            for stage in layout.own_stages
        }
        self._begin_stages(run, stages)
        with user_step.agreed(chain.line), user_step.unchanging(layout.user):
            if 0 in stages or self.last not in stages:
                run.first_arguments = self._arguments_in(run, 0)
        with nullcontext() if self._sequence is None else self._sequence.said():
            first_microbatch.compute(chain, stages, self._sequence)
        run.first_arguments = None
        self._set_up(runner, stages, len(run.cut))
        for number, stage in stages.items():
            stage.look_at(stage.outputs if number < self.last else [self._losses[0]])

    def _begin_stages(self, run: ScheduledRun, stages: dict[int, StageModule]) -> None:
        self._losses.clear()
        for number, stage in stages.items():
            within = None
            if number == self.last:
                within = partial(self._compute_in_step, run)
            stage.begin(run.seeds, partial(self._arguments_in, run), within)

    def _followed(self, run: ScheduledRun) -> AbstractContextManager[Any]:
        """A context in which calls in parts of the sequence are followed, if this step is."""
        if self._sequence is None or not run.is_followed:
            return nullcontext()
        return self._sequence.followed()

    def _set_up(self, runner: _Runner, stages: dict[int, StageModule], number: int) -> None:
        """All ranks of the pipeline. A schedule of so many microbatches, each like the one that was
        computed.
        """
        runner.stages = stages
        made: Any = [self._stage(stage, module) for stage, module in stages.items()]
        if not self._schedule.has_several_stages:
            (made,) = made
        runner.schedule = get_schedule_class(self._schedule.name)(
            made,
            number,
            loss_fn=lambda output, target: self._losses.pop(int(target)),
            scale_grads=False,
        )
        if self._sequence is not None:
            runner.length = self._sequence.length

    def _caught(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._sequence is None else self._sequence.caught()

    @contextmanager
    def _stage_context(self) -> Iterator[None]:
        following = nullcontext() if self._sequence is None else self._sequence.marking()
        with self._context(), self._caught(), following:
            yield

    def _unfollowed(self) -> AbstractContextManager[None]:
        return nullcontext() if self._sequence is None else self._sequence.unfollowed()

    def _stage(self, stage: int, module: StageModule) -> WatchedStage:
        made = WatchedStage(self._chain, module, stage, self._caught)
        module.pipeline_stage = made
        # Units reduce, and tokens travel, once a backward.
        if any(isinstance(part, FSDPModule) for part in module.modules()) or any(
            map(is_expert, module.parameters())
        ):
            module.splits_nothing()
        return made

    def _run(self, runner: _Runner, run: ScheduledRun) -> dict[nn.Parameter, Tensor]:
        """All ranks of the pipeline. Forward and backward of all stages; the gradients, apart from
        earlier ones.
        """
        chain = self._chain
        layout, shards = chain.layout, chain.shards
        shards.reshard()  # an evaluation may have left units gathered
        shards.forget_gradients()
        begins = not runner.stages
        learning = [
            one for one in layout.user.parameters() if not is_absent(one) and one.requires_grad
        ]
        if not begins:
            self._begin_stages(run, runner.stages)
            if self._sequence is not None:
                self._sequence.length = runner.length
        numbers = torch.arange(len(run.cut))
        inputs, options = [], {}
        if 0 in layout.own_stages:
            inputs.append(numbers)
        if self.last in layout.own_stages:
            options["target"] = numbers
        with set_aside(learning), schedule_errors.as_raised():
            # Autocast is for forward, and the schedule runs backward too.
            without = torch.autocast(chain.line.device.type, enabled=False)
            with self._followed(run), shards.held(), chain.added_up(), without:
                if begins:
                    self._begin(runner, run)
                runner.schedule.step(*inputs, return_outputs=False, **options)
                chain.line.given = None
            averages.add_up_terms(learning)
            return {one: one.grad for one in learning if one.grad is not None}

    def _arguments_in(self, run: ScheduledRun, index: int) -> Arguments:
        """The arguments with which the user's step calls the model, for a microbatch."""
        if index == 0 and run.first_arguments is not None:
            return run.first_arguments
        run.counters.begin()
        run.seeds.begin_step(self.last + 1, index)
        run.logs.is_muted = True
        piece = run.cut[index]
        try:
            with self._following(run, piece), self._step_context():
                found = arguments.taken_from(run.step, piece, self._chain)
        finally:
            run.logs.is_muted = False
        arguments.refuse(found, self._chain.layout.module)
        return found

    @contextmanager
    def _following(self, run: ScheduledRun, piece: Any) -> Iterator[FollowedMicrobatch | None]:
        """A context in which what the step computes of a microbatch is followed, if it is."""
        if not run.is_followed:
            yield None
            return
        mode = FollowedMicrobatch(size_of(run.cut[0]) or 0)
        mode.begin(piece)
        run.modes.append(mode)
        with uncompiled(), mode:
            yield mode

    def _compute_in_step(self, run: ScheduledRun, index: int, compute: Callable[..., Any]) -> None:
        """On the rank of the last stage: the user's step of a microbatch, in whose call of the
        model the stage computes.
        """

        def answer(*args: Any, **kwargs: Any) -> Any:
            arguments.refuse((args, kwargs), self._chain.layout.module)
            run.logs.is_open = False
            with self._draws.of_stages(base=0):
                found = compute(*args, **kwargs)
            run.logs.is_open = True
            return found

        self._losses[index] = self._loss_of(run, index, answer)

    def _loss_of(self, run: ScheduledRun, index: int, answer: Callable[..., Any]) -> Tensor:
        """On the rank of the last stage: the user's loss of a microbatch, by its share of the
        batch.
        """
        run.seeds.begin_step(self.last + 1, index)
        run.logs.is_open, run.logs.microbatch = True, index
        run.counters.begin()
        leaves: list[Any] = []
        is_first = run.is_followed and index == 0
        try:
            with self._following(run, run.cut[index]) as mode, ExitStack() as until_end:

                def call(*args: Any, **kwargs: Any) -> Any:
                    found: Any = partial(answer, *args, **kwargs)
                    if mode is not None:
                        found = partial(mode.answered, found)
                    found = found()
                    leaves.extend(tree_leaves(found))
                    if is_first:
                        until_end.enter_context(user_step.unchanging(self._chain.layout.user))
                    return found

                with user_step.answering_once(self._chain, call), self._step_context():
                    found = run.step(run.cut[index])
            run.counters.note()
        finally:
            run.logs.is_open = False
        kind, loss, weight = user_step.unpack(found)
        run.kinds.add(kind)
        if len(run.kinds) > 1:
            raise ModuleError(
                f"The training step returned {' and '.join(sorted(run.kinds))} for microbatches of "
                "one batch. Return a loss for each, all with a weight or all without; or leave "
                "schedule out."
            )
        run.weights.append(float(weight))
        if not run.reference:
            run.reference = run.weights[-1] * len(run.cut)
            if self._chain.peers is not None:
                run.reference = self._chain.peers.reference(run.reference)
        if run.is_followed:
            run.marked.append(None if loss is None else _marked_as(loss))
        if loss is None or not run.weights[-1]:  # the loss of no items may be NaN
            run.losses.append(torch.zeros((), device=leaves[0].device))
            nothing: Tensor = leaves[0].sum() * 0
            return nothing
        run.losses.append(loss.detach())
        if self._sequence is not None:
            self._sequence.share(loss)
        made: Tensor = loss * (run.scale * run.weights[-1] / run.reference)
        return made

    def _finish(
        self,
        runner: _Runner,
        run: ScheduledRun,
        module: nn.Module,
        gradients: dict[nn.Parameter, Tensor],
    ) -> Any:
        """All ranks of the pipeline. Bring the last stage's numbers to all, log them, and return
        the loss.
        """
        described, numbers = last_stage.share(self._chain, run, runner.described)
        for mode in run.modes:
            mode.forget()
        runner.described = described
        loss, total, factor, *others = numbers
        num_logged = len(described.logged)
        replay(module, described.logged, others[:num_logged])
        counted = zip(described.counted, others[num_logged:], strict=True)
        run.counters.end(
            {name: int(value) if is_whole else float(value) for (name, is_whole), value in counted}
        )
        if described.kind == "nothing":
            return None
        anchor = torch.zeros((), device=loss.device, requires_grad=True)
        made: Tensor = ScheduledLoss.apply(
            loss.to(described.dtype), anchor, gradients, factor, self._chain
        )  # type: ignore[no-untyped-call]  # torch's
        if described.kind == "loss":
            return made
        if described.kind == "weighted":
            return {"loss": made, "weight": float(total)}
        return {"loss": made}


def _marked_as(loss: Tensor) -> Tensor:
    """A value with the marks of a loss, and without its graph."""
    found = loss.detach()
    put_as([found], loss)
    return found
