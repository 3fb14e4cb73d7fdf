"""Experts that can't be distributed are refused with the reason; a list of them, their load, and
what experts drop.
"""

import re
from functools import partial

import pytest
import torch
from language import (
    ALONE,
    NUM_EXPERTS,
    WIDTH,
    Mixture,
    MixtureNet,
    Net,
    OddExperts,
    Stacked,
    Step,
    loader,
    on,
    one_expert,
    refusal,
    train,
    words_of,
)
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import PrepareModuleInput

from core import ModuleError
from core_parallel import ExpertList, ExpertLoad, MeshParallelStrategy
from core_parallel.mesh.placements import own_part


class OtherNames(MixtureNet):
    expert_parallel_plan = ("layers.*.experts",)


class Whole(MixtureNet):
    expert_parallel_plan = ("blocks.0",)


class Unknown(MixtureNet):
    expert_parallel_plan = {"blocks.*.experts": "spread"}


class Tied(MixtureNet):
    def __init__(self):
        super().__init__(Stacked(), Stacked())
        self.blocks[1].experts.up = self.blocks[0].experts.up


class _Normalizes(Stacked):
    def forward(self, tokens, numbers, weights):
        return super().forward(tokens, numbers, weights / weights.sum(1, keepdim=True))


class Normalizing(MixtureNet):
    tensor_parallel_plan = {"blocks.*.experts": "moe_tp_experts"}

    def __init__(self):
        super().__init__(_Normalizes())


class _OfSequences(Mixture):
    def forward(self, x):
        weights, numbers = self.gate(x).softmax(-1).topk(2)
        return x + self.experts(x, numbers, weights)


class Sequences(MixtureNet):
    def __init__(self):
        super().__init__()
        self.blocks[0] = _OfSequences(Stacked())


class Beside(MixtureNet):
    """One of its parts is a function, which calls a mixture that is no part."""

    def __init__(self):
        super().__init__(Stacked(), Stacked(), Stacked())
        self.mixture = self.blocks.pop(0)

    def pipeline(self):
        return [self.start, self.blocks[0], self.mix, *self.blocks[1:], self.head]

    def mix(self, x):
        return self.mixture(x)


_NORMALIZES = (
    r"_Normalizes 'blocks\.0\.experts' returns no sum of its experts' answers by their weights"
)


def _call(model, net):
    model(*words_of(2, 3)).square().sum().backward()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            Net,
            r"Net has no experts that are known: .* core_parallel\.ExpertList makes one of a list",
        ),
        (OddExperts, r"'blocks\.0\.experts' has 3 experts, and expert=2 doesn't divide that"),
        (OtherNames, r"names 'layers\.\*\.experts', and OtherNames has no such module"),
        (
            Whole,
            r"'blocks\.0' must have the number of experts as their first dim, and it has "
            r"'before\.weight'",
        ),
        (Unknown, r"Unknown has no experts that are known"),
        (
            Tied,
            r"'blocks\.0\.experts\.up' and 'blocks\.1\.experts\.up' share a parameter of experts",
        ),
        (
            Sequences,
            r"Stacked 'blocks\.0\.experts' was called with \[\(2, 3, 16\), \(2, 3, 2\), \(2, 3, "
            r"2\)\]",
        ),
    ],
)
def test_models_whose_experts_cannot_be_distributed_are_refused_with_the_reason(make, expected):
    for error in on(in_process=True, data=2, expert=2).run(refusal, make, _call):
        assert re.search(expected, error), error


def test_experts_that_normalize_are_refused_in_a_tensor_group_too():
    for error in on(in_process=True, tensor=2).run(refusal, Normalizing, _call):
        assert re.search(_NORMALIZES, error)


def test_each_rank_of_a_tensor_group_has_some_of_the_experts():
    def _shares(rank):
        fabric, net = rank.fabric(), MixtureNet()
        net.tensor_parallel_plan = OddExperts.tensor_parallel_plan
        fabric.setup(net)
        shapes = [own_part(one).shape for block in net.blocks for one in block.experts.parameters()]
        fabric.teardown()
        return shapes, [block.experts.num_experts for block in net.blocks]

    for shapes, counts in on(in_process=True, tensor=2).run(_shares):
        assert {shape[0] for shape in shapes} == {2}
        assert counts == [NUM_EXPERTS, NUM_EXPERTS]


class _Scaled(Step):
    """Its loss is scaled by the rank after a schedule has had it."""

    def backward(self, loss):
        (loss * (1 + self.trainer.strategy.data_parallel_rank)).backward()


_PLAN = {
    "net.blocks.0": PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
    )
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "make", "expected"),
    [
        (
            {"data": 2, "tensor": 2, "expert": 2, "tensor_plan": _PLAN},
            partial(Step, MixtureNet),
            r"Stacked 'net\.blocks\.0\.experts' was called with other tokens on each rank of a "
            r"tensor group",
        ),
        (
            {"data": 2, "pipeline": 2, "expert": 2},
            partial(Step, Beside),
            r"The experts 'net\.mixture\.experts' are in no part of the pipeline",
        ),
        (
            {"data": 2, "pipeline": 2, "schedule": "1F1B", "expert": 2},
            partial(_Scaled, MixtureNet),
            r"Losses of ranks whose experts are distributed are scaled by \S+ to \S+ after",
        ),
    ],
    ids=["tokens", "outside", "scaled"],
)
def test_what_would_be_wrong_beside_another_axis_is_refused(mesh, make, expected):
    def refuses(rank, make):
        with pytest.raises(ModuleError) as caught:
            rank.trainer(max_steps=1).fit(make(), loader(4))
        return str(caught.value)

    for error in on(**mesh).run(refuses, make):
        assert re.search(expected, error), error


@pytest.mark.slow
def test_experts_that_are_distributed_otherwise_are_refused():
    def distribute_anew(rank):
        module = Step(MixtureNet)
        rank.trainer(max_steps=1).fit(module, loader(4))
        with pytest.raises(ModuleError) as caught:
            rank.trainer(MeshParallelStrategy(expert=4), max_steps=1).fit(module, loader(4))
        return str(caught.value)

    for error in on(data=4, expert=2).run(distribute_anew):
        assert re.search(
            r"distributed already, over the ranks \[\d, \d\], and not over \[0, 1, 2, 3\]", error
        )


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            [nn.Linear(2, 2), nn.Linear(3, 2)],
            r"one class with the same parameters and without buffers, and got \('Linear'",
        ),
        ([], "and got none"),
        ([nn.BatchNorm1d(2), nn.BatchNorm1d(2)], r"without buffers, and got \('BatchNorm1d'"),
    ],
    ids=["unlike", "none", "buffers"],
)
def test_a_list_of_other_experts_is_refused(members, expected):
    with pytest.raises(ModuleError, match=expected):
        ExpertList(members)


def test_a_list_computes_what_its_members_do():
    torch.manual_seed(0)
    members = [one_expert() for _ in range(3)]
    tokens, weights = torch.randn(5, WIDTH), torch.rand(5, 2)
    # none for 1, and one past the last
    numbers = torch.tensor([[0, 2], [2, 0], [0, 2], [2, 2], [3, 0]])
    expected = torch.zeros_like(tokens)
    for place, choice in (numbers < 3).nonzero().tolist():
        expected[place] += weights[place, choice] * members[numbers[place, choice]](tokens[place])
    torch.testing.assert_close(ExpertList(members)(tokens, numbers, weights), expected)


@pytest.mark.numbers
@pytest.mark.parametrize(
    "mesh",
    [
        {"data": 2, "expert": 2},
        pytest.param(
            {"data": 2, "pipeline": 2, "schedule": "1F1B", "expert": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_the_load_is_that_of_one_device(mesh):
    class _Counted(Step):
        """Counts the choices of the first block itself."""

        def on_train_start(self):
            self.counts = torch.zeros(NUM_EXPERTS + 1)
            self.net.blocks[0].experts.register_forward_hook(self._count)

        def _count(self, module, given, result):
            self.counts += torch.bincount(given[1].flatten(), minlength=NUM_EXPERTS + 1)

    def logged(rank, make):
        module = make(MixtureNet)
        _, values = train(
            rank, lambda: module, callbacks=[ExpertLoad()], max_steps=2, log_every_n_steps=2
        )
        del values["loss"]
        hooks = [len(part._forward_pre_hooks) for part in module.modules()]
        return values, hooks, vars(module).get("counts")

    ((expected, hooks, counts),) = ALONE.run(logged, _Counted)
    shares = counts[:-1] / counts[:-1].sum()
    assert not any(hooks)
    for number, share in enumerate(shares.tolist()):
        assert expected[f"expert_load/net.blocks.0.experts/{number}"] == pytest.approx(share)
    assert expected["expert_load/net.blocks.0.experts/max_violation"] == pytest.approx(
        float(shares.max()) * 4 - 1
    )
    for found, *_ in on(**mesh).run(logged, Step):
        assert found == pytest.approx(expected)
