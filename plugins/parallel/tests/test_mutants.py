"""The kit sees what each axis may do wrong: a fault of each fails the test that is there for it."""

from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel

from core.session.divergence import Alike
from core_parallel import conformance, mesh_strategy
from core_parallel.communication import averages, collectives
from core_parallel.context.attention import Caught
from core_parallel.experts import expert_modules
from core_parallel.mesh.placements import own_part
from core_parallel.modules.followed_calls import FollowedCalls
from core_parallel.pipeline import backward_pass
from core_parallel.pipeline.scheduled_step import ScheduledStep
from core_testing import StrategyConformance
from core_testing.cases import CASES


class Schedule(StrategyConformance):
    """The whole kit, of which `TestSchedule` is the short one."""

    alias, options, data_parallel_size = "pipeline", {"schedule": "1F1B"}, 1


class Gather(StrategyConformance):
    """The same of `TestGather`."""

    alias, options, data_parallel_size, length = (
        "parallel",
        {"context": 2, "context_attention": "gather"},
        1,
        4,
    )


class Tensors(StrategyConformance):
    """A plan that cuts a layer whose input has a gradient."""

    alias, data_parallel_size = "parallel", 1
    options = {"tensor": 2, "tensor_plan": {"last": "colwise_gather_output"}}


_cut, _prepare = backward_pass._cut, ColwiseParallel._prepare_input_fn
_loss_of = ScheduledStep._loss_of
_norm_of, _average, _norm = averages.norm_of, averages.average, averages.get_total_norm


def first_gradient_twice(gradient, sizes):
    """`backward_pass._cut`, with the first microbatch's gradient twice."""
    first, *others = _cut(gradient, sizes)
    return [first if first is None else 2 * first, *others]


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] / 2


def halved_input_gradient(layouts, desired, module, inputs, mesh):
    """`ColwiseParallel._prepare_input_fn`, with the average of two ranks' gradients in place of
    their sum.
    """
    return _prepare(layouts, desired, module, (_Half.apply(inputs[0]), *inputs[1:]), mesh)


def _own_norm(counted, norm_type, line):
    return _norm_of(counted, norm_type, None)


def _twice_averaged(parameters, group):
    own = list(parameters)
    _average(own, group)
    for one in own:
        if one.grad is not None:
            one.grad /= 2


def _local_positions(self, query, key, value, mask, options):
    length = self._group.size() * self.length
    key, value = (collectives.gather(one, -2, self._group) for one in (key, value))
    mask = torch.ones(self.length, length, dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _enlarged_gradient(part, dim, group):
    def enlarged(whole, group):
        return collectives._own(dim, whole, group) * group.size()

    gathered = partial(collectives._gathered, dim)
    return collectives._exchange(part, group, gathered, enlarged, True)


def _unweighted(self, run, index, answer):
    loss, weight = _loss_of(self, run, index, answer), run.weights[-1]
    return loss * (run.reference / (run.scale * weight)) if weight else loss


def _nothing(*_, **__):
    pass


def _norm_of_parts(tensors, *options):
    return _norm([own_part(one) for one in tensors], *options)


_OWN = [
    (Schedule, "weighted", ScheduledStep, "_loss_of", _unweighted),
    (Gather, "sgd_momentum", Caught, "_by_keys", _local_positions),
    (
        Tensors,
        "sgd_momentum",
        ColwiseParallel,
        "_prepare_input_fn",
        staticmethod(halved_input_gradient),
    ),
]


def run(suite, test):
    """Run a test of the kit, of a case or of losses with weights, on ranks that are made for it:
    they see patches.
    """
    if test == "weighted":
        suite().test_losses_are_weighted("trainer", 3)
        return
    suite().test_training_equals_one_device(next(case for case in CASES if case.name == test))


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("suite", "test", "owner", "name", "fault"),
    [
        *_OWN,
        (conformance.TestPipeline, "adamw", backward_pass, "_cut", first_gradient_twice),
        (conformance.TestPipeline, "clipped_by_norm", averages, "norm_of", _own_norm),
        (
            conformance.TestContext,
            "sgd_momentum",
            collectives,
            "join",
            _enlarged_gradient,
        ),
        (conformance.TestShards, "sgd_momentum", mesh_strategy, "cut_axes", lambda _: frozenset()),
        (conformance.TestParallel, "sgd_momentum", averages, "average", _twice_averaged),
        (
            conformance.TestParallel,
            "weights_that_begin_apart",
            mesh_strategy.MeshStrategy,
            "_begin_alike",
            _nothing,
        ),
        (
            conformance.TestExpert,
            "sgd_momentum",
            expert_modules,
            "local_part",
            lambda one: one.to_local(),
        ),
        (
            conformance.TestStagesInParts,
            "clipped_by_norm",
            averages,
            "get_total_norm",
            _norm_of_parts,
        ),
    ],
)
def test_the_kit_sees_a_fault(suite, test, owner, name, fault):
    """Also where the comparisons of ranks and of calls, which see some of them before, see
    nothing.
    """
    with (
        mock.patch.object(Alike, "stepped", return_value=None),
        mock.patch.object(FollowedCalls, "has", return_value=False),
        mock.patch.object(mesh_strategy.MeshStrategy, "_followed", return_value=nullcontext()),
        mock.patch.object(owner, name, fault),
        pytest.raises(AssertionError, match=r"is off by|loss of step"),
    ):
        run(suite, test)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(("suite", "test"), [each[:2] for each in _OWN])
def test_suites_of_this_file_pass_without_a_fault(suite, test):
    run(suite, test)
