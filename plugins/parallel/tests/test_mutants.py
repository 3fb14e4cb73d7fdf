"""The kit sees what each axis may do wrong: every fault is put in, and fails the kit's test that is there for it."""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel

from core.session.divergence import Alike
from core_parallel import conformance, mesh_strategy
from core_parallel.communication import averages, collectives
from core_parallel.context.attention import Caught
from core_parallel.context.sequence import Context
from core_parallel.experts import dispatch, expert_modules
from core_parallel.mesh.placements import own_part
from core_parallel.pipeline import chain, scheduled_step
from core_parallel.pipeline.scheduled_step import ScheduledStep
from core_testing import StrategyConformance
from core_testing.cases import CASES


class Schedule(StrategyConformance):
    """The whole kit, of which `TestSchedule` is the short one."""

    alias, options, data_parallel_size = "pipeline", {"schedule": "1F1B"}, 1


class Gather(StrategyConformance):
    """The same of `TestGather`."""

    alias, options, data_parallel_size, length = "parallel", {"context": 2, "context_attention": "gather"}, 1, 4


class Tensors(StrategyConformance):
    """A plan that cuts a layer whose input has a gradient."""

    alias, data_parallel_size = "parallel", 1
    options = {"tensor": 2, "tensor_plan": {"last": "colwise_gather_output"}}


class Mutant(NamedTuple):
    """A fault, on an axis of the mesh.

    Attributes:
        fault: what is wrong, in words.
        suite: of the axis.
        test: of the kit, `test_training_equals_one_device` with this case, or another with its arguments.
        patches: what is replaced, as arguments of `mock.patch.object`.
    """

    fault: str
    suite: type[StrategyConformance]
    test: str
    patches: list[tuple[Any, str, Any]]


_cut, _loss, _prepare = chain._cut, ScheduledStep._loss, ColwiseParallel._prepare_input_fn


def first_gradient_twice(gradient, sizes):
    """`chain._cut`, with the first microbatch's gradient twice."""
    first, *others = _cut(gradient, sizes)
    return [first if first is None else 2 * first, *others]


def first_loss_twice(self, runner, output, target):
    """`ScheduledStep._loss`, with the first microbatch's loss twice."""
    loss = _loss(self, runner, output, target)
    return loss if int(target) else 2 * loss


def first_weight_twice(self, runner, output, target):
    """`ScheduledStep._loss`, with the first microbatch's weight twice."""
    loss = _loss(self, runner, output, target)
    runner.run.weights[-1] *= 1 if int(target) else 2
    return loss


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] / 2


def halved_input_gradient(layouts, desired, module, inputs, mesh):
    """`ColwiseParallel._prepare_input_fn`, with the average of two ranks' gradients in place of their sum."""
    return _prepare(layouts, desired, module, (_Half.apply(inputs[0]), *inputs[1:]), mesh)


def compares_no_ranks():
    """A context in which ranks that part train on, so that numbers show the fault."""
    return mock.patch.object(Alike, "stepped", return_value=None)


_gathered, _by_keys, _clip, _average = collectives._gathered, Caught._by_keys, averages.clip_by_norm, averages.average
_norm, _route, _average_shared = averages.get_total_norm, dispatch.route, expert_modules.average
# Comparisons of calls would see some before the kit does.
_unseen = (Context, "check", lambda *_: None)
_unseen_plans = (mesh_strategy.MeshStrategy, "_compared", lambda *_: nullcontext())


def _own_norm(parameters, counted, clipping, line):
    return _clip(parameters, counted, clipping, None)


def _twice_averaged(parameters, group):
    own = list(parameters)
    _average(own, group)
    for one in own:
        if one.grad is not None:
            one.grad /= 2


def _own_keys(self, query, key, value, mask, options):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=options["is_causal"])


def _local_positions(self, query, key, value, mask, options):
    length = self._group.size() * self.length
    key, value = (collectives.gather(one, -2, self._group) for one in (key, value))
    mask = torch.ones(self.length, length, dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _own_gradient(ctx, *gradients):
    return gradients[0].chunk(ctx.group.size(), ctx.dim)[ctx.group.rank()], None, None


def _reversed(part, dim, group):
    return torch.cat(_gathered(part, dim, group).chunk(group.size(), dim)[::-1], dim)


def _unswapped(ctx, *gradients):
    size, rank = ctx.group.size(), ctx.group.rank()
    own = gradients[0].chunk(size, ctx.joined_dim)[rank]
    return torch.cat([own] * size, ctx.cut_dim), None, None, None


def _nothing(*_, **__):
    pass


def _norm_of_parts(tensors, *options):
    return _norm([own_part(one) for one in tensors], *options)


def _to_another_expert(numbers, num_experts, group):
    routes = _route(numbers, num_experts, group)
    return replace(routes, experts=(routes.experts + 1) % (num_experts // group.size()))


def _over_all(parameters, mesh):
    return list(parameters)


def _shared_alone(parameters, mesh):
    _average_shared(parameters, mesh)
    return []


PIPELINE, CONTEXT, SHARDS, DATA, EXPERT, STAGES_IN_PARTS = (
    *(conformance.TestPipeline, conformance.TestContext, conformance.TestShards),
    *(conformance.TestParallel, conformance.TestExpert, conformance.TestStagesInParts),
)
_APART = [(mesh_strategy.MeshStrategy, "_begin_alike", _nothing)]
_LONGER = "test_losses_are_weighted[trainer-3]"

MUTANTS = [
    Mutant("a microbatch's gradient counts twice", PIPELINE, "adamw", [(chain, "_cut", first_gradient_twice)]),
    Mutant(
        "ranks clip by the norm of their stage", PIPELINE, "clipped_by_norm", [(averages, "clip_by_norm", _own_norm)]
    ),
    Mutant("stages begin with weights of their rank", PIPELINE, "weights_that_begin_apart", _APART),
    Mutant("a microbatch's gradient counts twice", Schedule, "adamw", [(ScheduledStep, "_loss", first_loss_twice)]),
    Mutant("a microbatch's weight counts twice", Schedule, "adamw", [(ScheduledStep, "_loss", first_weight_twice)]),
    Mutant(
        "weights of microbatches don't count", Schedule, _LONGER, [(scheduled_step, "_times", lambda tensor, _: tensor)]
    ),
    Mutant("gradients aren't averaged", CONTEXT, "sgd_momentum", [_unseen, (averages, "average", _nothing)]),
    Mutant(
        "ranks' parts come in another order", CONTEXT, "sgd_momentum", [_unseen, (collectives, "_gathered", _reversed)]
    ),
    Mutant("a part's gradient isn't scaled", CONTEXT, "sgd_momentum", [(collectives._Join, "backward", _own_gradient)]),
    Mutant(
        "gradients of heads aren't exchanged", CONTEXT, "sgd_momentum", [(collectives._Swap, "backward", _unswapped)]
    ),
    Mutant("keys aren't gathered", Gather, "sgd_momentum", [_unseen, (Caught, "_by_keys", _own_keys)]),
    Mutant(
        "positions are those in the part", Gather, "sgd_momentum", [_unseen, (Caught, "_by_keys", _local_positions)]
    ),
    Mutant(
        "gradients of keys aren't summed", Gather, "sgd_momentum", [(collectives._Gather, "backward", _own_gradient)]
    ),
    Mutant(
        "the gradient of a layer's input isn't summed",
        Tensors,
        "sgd_momentum",
        [
            (ColwiseParallel, "_prepare_input_fn", staticmethod(halved_input_gradient)),
        ],
    ),
    Mutant("layers are cut from weights of their rank", Tensors, "weights_that_begin_apart", [_unseen_plans, *_APART]),
    Mutant(
        "different shards are averaged", SHARDS, "sgd_momentum", [(mesh_strategy, "cut_axes", lambda _: frozenset())]
    ),
    Mutant("gradients aren't averaged", DATA, "sgd_momentum", [(averages, "average", _nothing)]),
    Mutant("gradients are averaged twice", DATA, "sgd_momentum", [(averages, "average", _twice_averaged)]),
    Mutant("ranks begin with weights of their own", DATA, "weights_that_begin_apart", _APART),
    Mutant("a token goes to another expert", EXPERT, "sgd_momentum", [(dispatch, "route", _to_another_expert)]),
    Mutant(
        "an expert's gradient is averaged over all", EXPERT, "sgd_momentum", [(expert_modules, "average", _over_all)]
    ),
    Mutant("shared gradients aren't averaged", EXPERT, "sgd_momentum", [(expert_modules, "average", _shared_alone)]),
    Mutant(
        "an expert's gradient is a sum", EXPERT, "sgd_momentum", [(dispatch, "local_part", lambda one: one.to_local())]
    ),
    Mutant(
        "a rank clips by its part of layers",
        STAGES_IN_PARTS,
        "clipped_by_norm",
        [(averages, "get_total_norm", _norm_of_parts)],
    ),
]


def run(suite, test):
    """Run a test of the kit on ranks that are made for it, which see what is patched here."""
    if test == _LONGER:
        suite().test_losses_are_weighted("trainer", 3)
        return
    suite().test_training_equals_one_device(next(case for case in CASES if case.name == test))


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.suite.__name__}: {mutant.fault}")
def test_the_kit_sees_a_fault(mutant):
    with ExitStack() as faults:
        faults.enter_context(compares_no_ranks())
        for patch in mutant.patches:
            faults.enter_context(mock.patch.object(*patch))
        with pytest.raises(AssertionError, match=r"is off by|loss of step"):
            run(mutant.suite, mutant.test)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("suite", "test"),
    sorted({(one.suite, one.test) for one in MUTANTS if one.suite in (Schedule, Gather, Tensors)}, key=str),
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_suites_of_this_file_pass_without_a_fault(suite, test):
    run(suite, test)
