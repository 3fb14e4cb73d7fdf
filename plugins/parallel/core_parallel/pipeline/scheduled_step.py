"""A training step through one of torch's schedules, in which the user's step stays as it is.

For each microbatch the first stage runs the step until it calls the model, takes the arguments, and
leaves it. The last stage runs the step with the stage's result as the answer of that call, so that
the loss comes to be there; torch calls that its loss function.

A step that makes the call within a block of `with` or `try` can't be left there: what it has opened
holds while the model computes, and ends once. It runs as without a schedule, on all ranks.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.data import size_of
from core_parallel.communication import averages
from core_parallel.experts.expert_modules import is_expert
from core_parallel.mesh.placements import own_part
from core_parallel.microbatches import batches
from core_parallel.microbatches.counters import Counters
from core_parallel.microbatches.recorded_logs import RecordedLogs, replay
from core_parallel.modules import comparing, open_blocks, own_state
from core_parallel.modules.absent import is_absent
from core_parallel.modules.check_keys import CheckKeys
from core_parallel.pipeline import trial
from core_parallel.pipeline.stage_module import StageModule, can_learn, travelling
from core_parallel.pipeline.watched_stage import WatchedStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from core_parallel.context.sequence import Context
    from core_parallel.microbatches.recorded_logs import Header
    from core_parallel.pipeline.chain import Chain, Computed
    from core_parallel.pipeline.draws import Draws, Seeds
    from core_parallel.pipeline.schedules import Schedule
    from core_parallel.pipeline.stage_module import Arguments

_log = logging.getLogger(__name__)
_KEPT = 4  # shapes for which a schedule stays set up, with the buffers that it receives into


class _Taken(BaseException):
    """The first stage has the arguments of the model. Nothing in the user's step notices it, see
    `open_blocks`.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments: Arguments = (args, kwargs)


@dataclass(frozen=True, slots=True)
class _Described:
    """The kind and the names of a step's numbers, which nobody has to read for that.

    Attributes:
        kind: of what the step has returned: "loss", "dict", "weighted", or "nothing".
        dtype: of the loss.
        logged: names, options and dtypes of the logged values.
        counted: names of the numbers that the step has counted, and whether they are whole.
    """

    kind: str
    dtype: torch.dtype
    logged: tuple[Header, ...]
    counted: tuple[tuple[str, bool], ...]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return 3 + len(self.logged) + len(self.counted)


@dataclass(slots=True)
class _Run:
    """One step.

    Attributes:
        step: the user's, for the batch of a microbatch.
        cut: these batches.
        seeds: the random numbers.
        scale: by which losses are multiplied, and gradients divided again when all are there.
        counters: of the user's module.
        logs: what the last stage logs.
        losses, weights: of the microbatches, on the rank of the last stage.
        kinds: of what the step has returned for them.
        reference: the weight of a batch, as it was guessed at the first microbatch.
    """

    step: Callable[[Any], Any]
    cut: list[Any]
    seeds: Seeds
    scale: float
    counters: Counters
    logs: RecordedLogs = field(default_factory=RecordedLogs)
    losses: list[Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    reference: float = 0.0


@dataclass(slots=True)
class _Runner:
    """A schedule that is set up for batches of one shape.

    Attributes:
        stages: of this rank, by number.
        schedule: torch's.
        run: the step that runs.
        described: the numbers that the last stage had to tell in the step before.
        length: of this rank's part of a sequence.
    """

    stages: dict[int, StageModule]
    schedule: Any = None
    run: _Run | None = None
    described: _Described | None = None
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
        deciding: the group of all ranks that communicate in a step, and its device: they compare
            together.
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
        deciding: tuple[Any, torch.device],
    ) -> None:
        self._chain, self._schedule, self._draws = chain, schedule, draws
        self._microbatches, self._context, self._scale, self._sequence = (
            microbatches,
            context,
            scale,
            sequence,
        )
        self._runners: dict[Any, _Runner] = {}
        self._step_context = context
        self._keys = CheckKeys(chain.layout.user, *deciding)
        self._is_plain = self._is_left_out = False
        self._last = chain.layout.num_stages - 1

    @property
    def stages(self) -> list[WatchedStage]:
        """The stages of this rank in every schedule that is set up."""
        return [
            stage.pipeline_stage
            for runner in self._runners.values()
            for stage in runner.stages.values()
        ]

    @property
    def last(self) -> int:
        """Number of the last stage."""
        return self._last

    def __call__(
        self,
        step: Callable[[Any], Any],
        batch: Any,
        module: nn.Module,
        trial_step: Callable[[], trial.Trial],
        step_context: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Any:
        """All ranks of the pipeline. The loss of a batch, whose gradients have been computed.

        Its graph scales these, and adds them to those that were there before. A batch that can't be
        cut as the schedule needs it goes through all stages at once, see `Chain`.

        Args:
            step: the user's, for a batch.
            batch: of all samples.
            module: the user's, which may log.
            trial_step: makes a step whose effects don't count.
            step_context: makes what the step computes in; None is that of the stages.

        Returns:
            What the user's step returns: the loss, or a dict with it and perhaps its weight; or
            None.
        """
        self._step_context = step_context or self._context
        # to ask for each microbatch takes time
        self._is_plain = isinstance(self._context(), nullcontext)
        layout, size = self._chain.layout, size_of(batch)
        divided, key_of_peers = size, None
        if self._chain.peers is not None:
            divided, key_of_peers = self._chain.peers.common_batch(size, batches.shapes_of(batch))
        number = self._schedule.choose(self._microbatches, divided, layout.size, layout.num_stages)
        if number is None or size is None or self._is_left_out or batches.has_mask(batch, size):
            return step(batch)
        cut = batches.cut_batch(batch, size, number)
        key = (number, batches.shapes_of(batch), key_of_peers, layout.module.training)
        is_due = self._keys.is_due(key, batches.are_even(batch, size, number))
        runner = self._runners.pop(key, None)
        if runner is None or is_due:
            with RecordedLogs().instead_of(module), self._uncompared():
                computed = self._try(batch, cut, trial_step(), is_new=runner is None, is_due=is_due)
            if computed is None:
                return step(batch)
            runner = runner or self._set_up(computed, len(cut))
        self._runners[key] = runner
        if len(self._runners) > _KEPT:
            self._runners.pop(next(iter(self._runners)))
        with self._draws.of_stages() as seeds, self._uncompared():
            runner.run = run = _Run(step, cut, seeds, self._scale(), Counters(module))
            try:
                with run.logs.instead_of(module):
                    gradients = self._run(runner, run)
            finally:
                runner.run = None
        return self._finish(runner, run, module, gradients)

    # once for each shape --------------------------------------------------------------------------

    def _try(
        self, batch: Any, cut: list[Any], step: trial.Trial, *, is_new: bool, is_due: bool
    ) -> dict[tuple[int, int], Computed] | None:
        """All ranks of the pipeline. Run the stages, which gives the shapes between them; if due,
        compare losses too.

        Returns:
            What this rank's stages have computed; None if the step can't be left at its call of the
            model.
        """
        layout, line = self._chain.layout, self._chain.line
        if is_new:
            with (
                own_state.kept(layout.user),
                self._draws.of_stages(base=0) as seeds,
                trial.agreed(line),
            ):
                self._is_left_out = self._calls_in_block(step, cut[0], seeds)
            if self._is_left_out:
                return None
        if self._chain.shards is not None:
            self._chain.shards.reshard()
        no_constants = comparing.no_constants(layout.user) if is_due else nullcontext()
        with (
            own_state.buffers_kept(layout.user),
            self._draws.of_stages(base=0) as seeds,
            no_constants,
        ):
            if is_due and self._sequence is not None:
                self._check_sequence(self._sequence, step, batch, seeds)
            with trial.agreed(line):
                pieces = cut if is_due else cut[:1]
                arguments = [
                    self._arguments(step, piece, index, seeds) for index, piece in enumerate(pieces)
                ]
            with torch.no_grad(), self._caught():
                computed = self._chain.run_forward(arguments, seeds)
            if is_due:
                with trial.agreed(line), torch.no_grad(), self._step_context():
                    if self._last in layout.own_stages:
                        answers = [computed[self._last, index] for index in range(len(cut))]
                        trial.compare(self._chain, step, batch, cut, answers, seeds)
        return computed

    def _set_up(self, computed: dict[tuple[int, int], Computed], number: int) -> _Runner:
        """All ranks of the pipeline. A schedule of so many microbatches, each like the one that was
        computed.
        """
        layout = self._chain.layout
        likes = {stage: computed[stage, 0] for stage in layout.own_stages}
        make = partial(
            StageModule,
            self._chain,
            context=self._stage_context,
            splits=self._schedule.splits_backward,
        )
        runner = _Runner({stage: make(stage, like) for stage, like in likes.items()})
        if self._sequence is not None:
            runner.length = self._sequence.length
        stages = [self._stage(runner, stage, like) for stage, like in likes.items()]
        runner.schedule = get_schedule_class(self._schedule.name)(
            stages if self._schedule.has_several_stages else stages[0],
            number,
            loss_fn=lambda output, target: self._loss(runner, output, target),
            scale_grads=False,
        )
        return runner

    def _calls_in_block(self, step: trial.Trial, piece: Any, seeds: Seeds) -> bool:
        """All ranks of the pipeline. True if the step calls the model in a block; then it has run
        to its end.
        """
        found: list[str] = []

        def look(*args: Any, **kwargs: Any) -> Any:
            if (place := open_blocks.around_call()) is None:
                raise _Taken(args, kwargs)
            found.append(place)
            with step.model_runs():
                return self._compute(args, kwargs)

        answering = self._chain.answering if self._sequence is None else self._sequence.answering
        seeds.begin_step(self._last + 1, 0)
        with suppress(_Taken), answering(look), self._step_context():
            step(piece)
        if found and dist.get_rank() == 0:
            _log.warning(
                "schedule=%r has no effect: the training step calls %s within a block of `with` or "
                "`try` (%s), which is open on all ranks while all stages compute. End the block "
                "before the call, or move it into the model.",
                self._schedule.name,
                type(self._chain.layout.module).__name__,
                found[0],
            )
        return bool(found)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All ranks of the pipeline. The model's answer to a call, without a schedule."""
        if self._sequence is None:
            return self._chain.compute(*args, **kwargs)
        with self._sequence.answering(None):
            return self._sequence(self._chain, args, kwargs)

    def _caught(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._sequence is None else self._sequence.caught()

    def _stage_context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._is_plain and self._sequence is None else self._both_contexts()

    @contextmanager
    def _both_contexts(self) -> Iterator[None]:
        with self._context(), self._caught():
            yield

    def _uncompared(self) -> AbstractContextManager[None]:
        return nullcontext() if self._sequence is None else self._sequence.uncompared()

    def _check_sequence(
        self, sequence: Context, step: Callable[[Any], Any], batch: Any, seeds: Seeds
    ) -> None:
        """All ranks of the pipeline. Follow a call of the model in parts of the sequence."""
        seeds.begin_step(self._last + 1, 0)
        try:
            with sequence.answering(_take), self._step_context():
                step(batch)
        except _Taken as taken:
            args, kwargs = taken.arguments
            with self._context():
                sequence.check(self._chain, args, kwargs)

    def _stage(self, runner: _Runner, stage: int, like: Computed) -> WatchedStage:
        line, module = self._chain.line, runner.stages[stage]
        inputs = [torch.zeros(1, dtype=torch.int64)] if stage == 0 else like.inputs
        made = WatchedStage(
            self._chain,
            stage,
            self._caught,
            module,
            stage,
            self._last + 1,
            line.device,
            # With the shapes given, torch runs nothing to find them.
            input_args=tuple(map(_example, inputs)),
            output_args=tuple(map(_example, like.outputs)),
            group=line.group,
        )
        module.pipeline_stage = made
        # Units reduce, and tokens travel, once a backward.
        if any(isinstance(part, FSDPModule) for part in module.modules()) or any(
            map(is_expert, module.parameters())
        ):
            module.splits_nothing()
        return made

    # one step -------------------------------------------------------------------------------------

    def _run(self, runner: _Runner, run: _Run) -> dict[nn.Parameter, Tensor]:
        """All ranks of the pipeline. Forward and backward of all stages; the gradients, apart from
        earlier ones.
        """
        layout, line = self._chain.layout, self._chain.line
        shards = self._chain.shards
        assert shards is not None, "the set-up has found them"
        shards.reshard()  # an evaluation may have left units gathered
        shards.forget_gradients()
        if self._sequence is not None:
            self._sequence.length = runner.length
        learning = [
            one for one in layout.user.parameters() if not is_absent(one) and one.requires_grad
        ]
        before = [one.grad for one in learning]
        for one in learning:
            one.grad = None
        for stage in runner.stages.values():
            stage.begin(run.seeds, lambda index: self._arguments_in(run, index))
        numbers = torch.arange(len(run.cut))
        inputs = [numbers] if 0 in layout.own_stages else []
        options: dict[str, Any] = {"target": numbers} if self._last in layout.own_stages else {}
        try:
            # Autocast is for forward, and the schedule runs backward too.
            with (
                shards.held(),
                self._chain.added_up(),
                _quiet(),
                torch.autocast(line.device.type, enabled=False),
            ):
                runner.schedule.step(*inputs, return_outputs=False, **options)
                self._chain.line.given = None
            averages.add_up_terms(learning)
            return {one: one.grad for one in learning if one.grad is not None}
        except RuntimeError as error:
            cause = _first_cause(error)
            if cause is error:
                raise
            raise cause from None
        finally:
            for one, earlier in zip(learning, before, strict=True):
                one.grad = earlier

    def _arguments_in(self, run: _Run, index: int) -> Arguments:
        run.counters.begin()
        return self._arguments(run.step, run.cut[index], index, run.seeds, run.logs)

    def _arguments(
        self,
        step: Callable[[Any], Any],
        piece: Any,
        index: int,
        seeds: Seeds,
        logs: RecordedLogs | None = None,
    ) -> Arguments:
        """The arguments with which the user's step calls the model, for a microbatch."""
        seeds.begin_step(self._last + 1, index)
        logs = logs or RecordedLogs()
        logs.is_muted = True
        try:
            with self._chain.answering(_take), self._step_context():
                step(piece)
        except _Taken as taken:
            _refuse_asked(taken.arguments)
            return taken.arguments
        finally:
            logs.is_muted = False
        raise ModuleError(
            "The training step returned without a call of "
            f"{type(self._chain.layout.module).__name__}, which has been cut into stages. With a "
            "schedule every step calls it once; leave schedule out for steps that may skip it."
        )

    def _loss(self, runner: _Runner, output: Any, target: Tensor) -> Tensor:
        """On the rank of the last stage: the user's loss of a microbatch, by its share of the
        batch.
        """
        run, index = runner.run, int(target)
        assert run is not None, "torch calls it within a step"
        leaves = output if isinstance(output, tuple) else (output,)
        run.seeds.begin_step(self._last + 1, index)
        run.logs.is_open, run.logs.microbatch = True, index
        run.counters.begin()
        try:
            with (
                trial.answering_once(self._chain, runner.stages[self._last].answer(leaves)),
                self._step_context(),
            ):
                found = run.step(run.cut[index])
            run.counters.note()
        finally:
            run.logs.is_open = False
        kind, loss, weight = trial.unpack(found)
        if index == 0:
            runner.stages[self._last].look_at([loss])
        run.kinds.add(kind)
        if len(run.kinds) > 1:
            raise ModuleError(
                f"The training step returned {' and '.join(sorted(run.kinds))} for microbatches of "
                "one batch. Return a loss for each, all with a weight or all without; or leave "
                "schedule out."
            )
        run.weights.append(1.0 if weight is None else float(weight))
        if not run.reference:
            guess, peers = run.weights[-1] * len(run.cut), self._chain.peers
            run.reference = guess if peers is None else peers.reference(guess)
        if loss is None or not run.weights[-1]:  # the loss of no items may be NaN
            run.losses.append(torch.zeros((), device=leaves[0].device))
            return _times(leaves[0].sum(), 0)
        run.losses.append(loss.detach())
        if self._sequence is not None:
            self._sequence.share(loss)
        return _times(loss, run.scale * run.weights[-1] / run.reference)

    def _finish(
        self, runner: _Runner, run: _Run, module: nn.Module, gradients: dict[nn.Parameter, Tensor]
    ) -> Any:
        """All ranks of the pipeline. Bring the last stage's numbers to all, log them, and return
        the loss.
        """
        described, (loss, total, factor, *others) = self._share(runner, run)
        num_logged = len(described.logged)
        replay(module, described.logged, others[:num_logged])
        counted = zip(described.counted, others[num_logged:], strict=True)
        run.counters.end(
            {name: int(value) if is_whole else float(value) for (name, is_whole), value in counted}
        )
        if described.kind == "nothing":
            return None
        anchor = torch.zeros((), device=loss.device, requires_grad=True)
        made: Tensor = _Scheduled.apply(
            loss.to(described.dtype), anchor, gradients, factor, self._chain
        )  # type: ignore[no-untyped-call]  # torch's
        if described.kind == "weighted":
            return {"loss": made, "weight": float(total)}
        return made if described.kind == "loss" else {"loss": made}

    def _share(self, runner: _Runner, run: _Run) -> tuple[_Described, list[Tensor]]:
        """All ranks of the pipeline. The numbers of the last stage, in one message if it logs what
        it did before.
        """
        line, owner = self._chain.line, self._chain.layout.owner(self._last)
        described, before = None, runner.described
        dtype = torch.float32 if line.device.type == "mps" else torch.float64
        numbers = torch.zeros(0, dtype=dtype, device=line.device)
        if line.position == owner:
            described, numbers = _summarized(run, numbers)
        if before is not None:
            mark = torch.full((1,), float(described == before), dtype=dtype, device=line.device)
            message = mark.new_zeros(1 + before.size)
            if described == before:
                message = torch.cat([mark, numbers])
            message = line.share(message, owner)
            if message[0]:
                return before, list(message[1:])
        runner.described = described = line.share_object(described, owner)
        assert described is not None
        return described, list(
            line.share(numbers if numbers.numel() else numbers.new_zeros(described.size), owner)
        )


class _Scheduled(torch.autograd.Function):
    """The loss of a batch whose gradients are there already: backward scales them, and adds them to
    earlier ones.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loss: Tensor,
        anchor: Tensor,
        gradients: dict[nn.Parameter, Tensor],
        factor: Tensor,
        chain: Chain,
    ) -> Tensor:
        """The loss."""
        ctx.gradients, ctx.factor, ctx.chain = gradients, factor, chain
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """Set the gradients of this rank's parameters."""
        if ctx.gradients is None:
            raise ModuleError(
                "backward was called twice on one loss of a pipeline's schedule, which has "
                "computed the gradients once. Add up the losses in training_step, and call it once."
            )
        scale = incoming[0] * ctx.factor.to(incoming[0])
        if ctx.chain.peers is not None:
            scale = ctx.chain.peers.common_factor(scale, is_known=bool(ctx.factor))
        for parameter, gradient in ctx.gradients.items():
            own_part(gradient).mul_(scale.to(gradient.dtype))
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        ctx.chain.shards.reduce(scale)
        ctx.gradients = None
        return None, None, None, None, None


def _times(tensor: Tensor, number: float) -> Tensor:
    return tensor * number


def _take(*args: Any, **kwargs: Any) -> Any:
    if (place := open_blocks.around_call()) is not None:
        raise ModuleError(
            f"The training step called the model within a block of `with` or `try` ({place}), and "
            "for an earlier batch it didn't. With a schedule the step is left at that call: leave "
            "out the block, or the schedule."
        )
    raise _Taken(args, kwargs)


def _refuse_asked(arguments: Arguments) -> None:
    """Refuse arguments whose gradients the step asks for: it has ended when there are any."""
    for one in tree_leaves(arguments):
        is_parameter = isinstance(one, nn.Parameter)
        if isinstance(one, Tensor) and one.requires_grad and one.is_leaf and not is_parameter:
            raise ModuleError(
                f"The training step gives the model a tensor of shape {tuple(one.shape)} that "
                "wants a gradient, as adversarial training does. With a schedule gradients are "
                "there when the step has ended: leave schedule out."
            )


def _summarized(run: _Run, like: Tensor) -> tuple[_Described, Tensor]:
    """The numbers of a step: its loss, its weight, what gradients are multiplied by, and what was
    logged.
    """
    kind = next(iter(run.kinds))
    weights = torch.tensor(run.weights).to(like)
    losses = torch.stack([loss.to(like).reshape(()) for loss in run.losses])
    total = weights.sum()
    nothing = torch.zeros_like(total)  # a batch without items teaches nothing, and spoils nothing
    loss = torch.where(total == 0, nothing, (losses * weights).sum() / total)
    factor = torch.where(
        total == 0, nothing, torch.tensor(run.reference / run.scale).to(like) / total
    )
    logged = run.logs.values(run.weights, like)
    counted = tuple((name, isinstance(value, int)) for name, value in run.counters.counted.items())
    described = _Described(kind, run.losses[-1].dtype, tuple(run.logs.header()), counted)
    numbers = torch.tensor(list(run.counters.counted.values())).to(like)
    return described, torch.cat([torch.stack([loss, total, factor, *logged]), numbers])


def _example(leaf: Tensor) -> Tensor:
    leaf = travelling(leaf)
    return torch.empty(
        leaf.shape, dtype=leaf.dtype, device=leaf.device, requires_grad=can_learn(leaf)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which torch doesn't log the whole schedule beside an error."""
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    # setLevel clears the caches of all loggers, which takes milliseconds
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _first_cause(error: BaseException) -> BaseException:
    """The error that was raised in a stage: torch wraps it, with all arguments in its text."""
    cause = error.__cause__
    if type(error) is not RuntimeError or cause is None or cause is error:
        return error
    return _first_cause(cause)
