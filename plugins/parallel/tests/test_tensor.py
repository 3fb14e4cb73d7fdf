"""Plans that can't be right are refused by name, and layers that need what is cut; a run that has
ended is let go.
"""

import gc
import json
import re
import weakref
from functools import partial

import pytest
import torch
from language import (
    WIDTH,
    WINDOWS,
    Adapted,
    Net,
    OddExperts,
    OfTransformers,
    Step,
    assert_equals_one_device,
    loader,
    on,
    refusal,
)
from torch import nn
from torch.nn import functional

from core import CoreError


class _OfPlan(Net):
    tensor_parallel_plan = None


class _WithoutPairs(_OfPlan):
    def __init__(self):
        super().__init__()
        self.blocks = self.blocks[:0]


class _Unknown(Net):
    tensor_parallel_plan = {"blocks.*.up": "columns"}


class _Nothing(Net):
    tensor_parallel_plan = {"layers.*.up": "colwise"}


class _Tied(Net):
    tensor_parallel_plan = {"head": "colwise_gather_output"}

    def __init__(self):
        super().__init__()
        self.head.weight = self.start.embed.weight


class _Odd(Net):
    tensor_parallel_plan = {"head": "colwise"}


class _Heads(Net):
    """Each block says how wide a head is, and its keys have one head."""

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.attention.head_dim = WIDTH


class _OfParameters(Net):
    tensor_parallel_plan = {"head.weight": "colwise"}


class _Latent(Net):
    tensor_parallel_plan = {"blocks.*.attention.key": "mla_kv_a_proj"}


class _Normed(Net):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.blocks[0].up)


class _Convolved(Net):
    tensor_parallel_plan = {"place": "colwise"}

    def __init__(self):
        super().__init__()
        self.place = nn.Conv1d(4, 4, 1)


class _Scaling(Adapted):
    def __init__(self):
        super().__init__()
        self.blocks[0].attention.query.magnitude = nn.Parameter(self.head.weight[0, :1].detach())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            _OfPlan,
            r"_OfPlan has no plan: neither the strategy's argument tensor_plan=, nor an attribute .* "
            r"Add one, such as tensor_plan=\{\"blocks\.\*\.up\": \"colwise\", "
            r"\"blocks\.\*\.down\": \"rowwise\"\}, or",
        ),
        (
            _WithoutPairs,
            r"_WithoutPairs has no plan: .* It has no layers that could be in one: leave the axis",
        ),
        (
            _Unknown,
            r"The plan for 'blocks\.0\.up' is 'columns'; expected one of torch's styles, or one of "
            r"'colwise'",
        ),
        (
            _Nothing,
            r"names 'layers\.\*\.up', and _Nothing has no such module or parameter\. It has "
            r"'start'",
        ),
        (_Tied, r"'start\.embed\.weight' and 'head\.weight' share a weight"),
        (_Odd, "'head' has 11 rows, and tensor=2 doesn't divide that"),
        (
            _Heads,
            r"'blocks\.0\.attention\.query' has 1 heads of 16 numbers, and tensor=2 doesn't divide "
            r"1",
        ),
        (
            _OfParameters,
            r"names 'head\.weight', which is a parameter and no module, with 'colwise'",
        ),
        (
            _Latent,
            r"'blocks\.0\.attention\.key' is 'mla_kv_a_proj', and the module around it has no "
            r"qk_rope_head_dim",
        ),
        (
            _Normed,
            r"'blocks\.0\.up' is to be cut .* and computes its weight in each call, of the whole "
            r"\(Parametrized",
        ),
        (_Convolved, r"'place' is to be cut by columns or rows, .* and is none \(Conv1d\)"),
        (
            _Scaling,
            r"'blocks\.0\.attention\.query' is to be cut, and has an adapter \(Adapter\) that isn",
        ),
        (OddExperts, r"'blocks\.0\.experts' has 3 experts, and tensor=2 doesn't divide that"),
    ],
)
def test_plans_that_cannot_be_right_are_refused_by_name(make, expected):
    for error in on(in_process=True, tensor=2).run(refusal, make):
        assert re.search(expected, error), error


class _Mlp(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.up, self.between, self.down = nn.Linear(WIDTH, 8), between, nn.Linear(8, WIDTH)

    def forward(self, x):
        """The answer, and this rank's part of what it was made of, as attention returns weights of
        its own heads.
        """
        hidden = self.between(self.up(x))
        return x + self.down(hidden), hidden


class _Largest(nn.Module):
    def forward(self, x):
        return x * (x >= x.topk(4, dim=-1).values[..., -1:])


class _Norm(nn.Module):
    def forward(self, x):
        return functional.rms_norm(x, x.shape[-1:])


class _NormLater(_Norm):
    def forward(self, x):
        return super().forward(x) if len(x) > 2 else x


_VALUES = r"_Mlp 'mlp' computes other values with the layers that the tensor plan cuts than whole"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (partial(nn.Softmax, dim=-1), _VALUES),
        (_Largest, _VALUES),
        (_Norm, _VALUES),
        (_NormLater, _VALUES),
        (
            nn.PReLU,
            r"would have other gradients of 'mlp\.between\.weight'.*'replicated_with_grad_allreduce'",
        ),
        (partial(nn.Dropout, 0.5), "^$"),
        (nn.GELU, "^$"),
    ],
)
def test_a_plan_that_cuts_what_needs_whole_values_is_refused(make, expected):
    class _Planned(nn.Module):
        tensor_parallel_plan = {"mlp.up": "colwise", "mlp.down": "rowwise"}

        def __init__(self, between):
            super().__init__()
            self.mlp = _Mlp(between)

        def forward(self, x):
            return self.mlp(x)[0]

    def _step(rank, make):
        """The error of two steps, of which the second has more samples."""
        torch.manual_seed(0)
        fabric = rank.fabric()
        model = fabric.setup(_Planned(make()))
        try:
            for number in (2, 4):
                fabric.backward(model(torch.randn(number, WIDTH)).square().mean())
        except CoreError as error:
            return str(error)
        finally:
            fabric.teardown()
        return ""

    for said in on(in_process=True, tensor=2).run(_step, make):
        assert re.search(expected, said), said


def test_a_run_that_has_ended_is_let_go():
    """With its model, its groups and their threads."""

    def lives_on(rank):
        def fit():
            trainer = rank.trainer(max_steps=1)
            trainer.fit(Step(), loader(8))
            return weakref.ref(trainer.strategy)

        strategy = fit()
        gc.collect()
        return strategy() is not None

    assert on(tensor=2).run(lives_on) == [False, False]


@pytest.mark.slow
def test_a_plan_that_an_error_proposes_is_right():
    """Of a model of transformers whose config has none."""
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    make = partial(OfTransformers, "Bert", **dropouts)
    text = on(in_process=True, tensor=2).run(refusal, make)[0]
    plan = json.loads(re.search(r"tensor_plan=(\{.*?\})", text)[1])
    assert plan == {
        "net.bert.encoder.layer.*.intermediate.dense": "colwise",
        "net.bert.encoder.layer.*.output.dense": "rowwise",
    }
    assert_equals_one_device({"tensor": 2, "tensor_plan": plan}, make, **WINDOWS)
