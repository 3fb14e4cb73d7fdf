"""Layers cut over a tensor group, and parameters over shards, compute what one device does."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mixtures
import pytest
import torch
from axes import (
    WIDTH,
    WORDS,
    Net,
    Step,
    assert_equals_one_device,
    assert_goes_on,
    in_both_forms,
    loader,
    on_mesh,
)
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from core import CoreError
from core.strategies import DDPStrategy, FSDPStrategy
from core_parallel.mesh.placements import own_part

if TYPE_CHECKING:
    from pathlib import Path

    from core_testing.ranks import Backend, Rank

_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 4}


_SLOW = pytest.mark.slow


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "data_parallel_size", "options"),
    [
        pytest.param({"tensor": 2}, 2, 1, {}, marks=_SLOW),
        pytest.param({"shard": 2}, 2, 2, {}, marks=pytest.mark.exhaustive),
        ({"tensor": 2}, 2, 1, _WINDOW),
        pytest.param({"shard": 2}, 2, 2, _WINDOW, marks=_SLOW),
        pytest.param({"tensor": 2, "shard": 2}, 4, 2, _WINDOW, marks=_SLOW),
        # `data` averages what `shard` reduces, and stands beside a tensor group in the test of a sequence that is cut.
        pytest.param({"data": 2, "shard": 2}, 4, 4, _WINDOW, marks=pytest.mark.exhaustive),
        pytest.param({"data": 2, "tensor": 2}, 4, 2, _WINDOW, marks=pytest.mark.exhaustive),
        pytest.param({"tensor": 2, "shard": 2}, 4, 2, {}, marks=pytest.mark.exhaustive),
        pytest.param({"data": 2, "tensor": 2}, 4, 2, {}, marks=pytest.mark.exhaustive),
        pytest.param({"data": 2, "shard": 2}, 4, 4, {}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_steps_equal_one_device(
    sizes: dict[str, Any], num_processes: int, data_parallel_size: int, options: dict[str, Any]
) -> None:
    assert_equals_one_device(on_mesh(num_processes, data_parallel_size, **sizes), **options)


class _OfPlan(Net):
    tensor_parallel_plan = None


class _Unknown(Net):
    tensor_parallel_plan = {"blocks.*.up": "columns"}


class _Nothing(Net):
    tensor_parallel_plan = {"layers.*.up": "colwise"}


class _Tied(Net):
    tensor_parallel_plan = {"head": "colwise_gather_output"}

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


class _Odd(Net):
    tensor_parallel_plan = {"head": "colwise"}


class _Heads(Net):
    """Each block says how wide a head is, and its keys have one head."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.head_dim = WIDTH


class _OfParameters(Net):
    tensor_parallel_plan = {"head.weight": "colwise"}


class _Latent(Net):
    tensor_parallel_plan = {"blocks.*.attention.key": "mla_kv_a_proj"}


class _Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.blocks[0].up)


class _Convolved(Net):
    tensor_parallel_plan = {"place": "colwise"}

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Conv1d(4, 4, 1)


class Adapter(nn.Module):
    """A layer with a low-rank adapter, in the form of peft."""

    def __init__(self, layer: nn.Linear, *, scales: bool = False) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, layer.out_features, bias=False)})
        self.magnitude = nn.ParameterList([nn.Parameter(torch.ones(1))] if scales else [])

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


class Adapted(Net):
    """Adapters around layers that are cut by columns, and by rows."""

    def __init__(self, *, scales: bool = False) -> None:
        super().__init__()
        self.requires_grad_(False)
        for block in self.blocks:
            block.attention.query = Adapter(block.attention.query, scales=scales)
            block.down = Adapter(block.down)


class _OddExperts(mixtures.Odd):
    tensor_parallel_plan = {"blocks.*.experts": "moe_tp_experts"}


_REFUSED: list[tuple[Any, str]] = [
    (
        _OfPlan,
        "_OfPlan has no plan: neither the strategy's argument tensor_plan=, nor an attribute",
    ),
    (_Unknown, r"The plan for 'blocks\.0\.up' is 'columns'; expected one of torch's styles, or one of 'colwise'"),
    (_Nothing, r"names 'layers\.\*\.up', and _Nothing has no such module or parameter\. It has 'embed'"),
    (_Tied, r"'embed\.weight' and 'head\.weight' share a weight"),
    (_Odd, "'head' has 11 rows, and tensor=2 doesn't divide that"),
    (_Heads, r"'blocks\.0\.attention\.query' has 1 heads of 16 numbers, and tensor=2 doesn't divide 1"),
    (_OfParameters, r"names 'head\.weight', which is a parameter and no module, with 'colwise'"),
    (_Latent, r"'blocks\.0\.attention\.key' is 'mla_kv_a_proj', and the module around it has no qk_rope_head_dim"),
    (_Normed, r"'blocks\.0\.up' is to be cut .* and computes its weight in each call, of the whole \(Parametrized"),
    (_Convolved, r"'place' is to be cut by columns or rows, .* and is none \(Conv1d\)"),
    (
        partial(Adapted, scales=True),
        r"'blocks\.0\.attention\.query' is to be cut, and has an adapter \(Adapter\) that isn",
    ),
    (_OddExperts, r"'blocks\.0\.experts' has 3 experts, and tensor=2 doesn't divide that"),
]


def _errors(rank: Rank) -> list[str]:
    errors = []
    for make, _ in _REFUSED:
        fabric = rank.fabric()
        with pytest.raises(CoreError) as caught:
            fabric.setup(make())
        errors.append(str(caught.value))
        fabric.teardown()
    return errors


def test_plans_that_cannot_be_right_are_refused_by_name() -> None:
    for errors in on_mesh(2, 1, tensor=2).run(_errors):
        for error, (_, expected) in zip(errors, _REFUSED, strict=True):
            assert re.search(expected, error), error


_SEQUENCE = {
    "net.blocks.*.norm": SequenceParallel(),
    **{f"net.blocks.*.attention.{name}": ColwiseParallel(input_layouts=Shard(1)) for name in ("query", "key", "value")},
    "net.blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    **{f"net.blocks.*.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.out", "down")},
    "net.blocks.0": PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
    ),
    # Its rows don't divide: it is replicated, and sees whole sequences.
    "net.head": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True),
}


@pytest.mark.slow
@pytest.mark.numbers
def test_a_plan_of_torchs_styles_may_cut_the_sequence() -> None:
    assert_equals_one_device(on_mesh(4, 2, data=2, tensor=2, tensor_plan=_SEQUENCE), gradient_clip_val=0.3)


def _qwen() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        tie_word_embeddings=True,
    )
    return transformers.Qwen3ForCausalLM(config)


class _OfTransformers(Step):
    def __init__(self) -> None:
        super().__init__(_qwen)

    def compute(self, words: Any) -> Any:
        return self.net(input_ids=words).logits


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    "sizes",
    [{"shard": 2, "tensor": 2}, pytest.param({"data": 2, "tensor": 2}, marks=pytest.mark.exhaustive)],
    ids=str,
)
def test_a_transformers_model_is_cut_by_the_plan_of_its_config(sizes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    assert_equals_one_device(on_mesh(4, 2, **sizes), _OfTransformers, gradient_clip_val=0.3)


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "shares"),
    # test_expert_combined.py trains mixtures beside shards.
    [({"tensor": 2}, 2, 1), pytest.param({"tensor": 2, "shard": 2}, 4, 2, marks=pytest.mark.exhaustive)],
    ids=str,
)
def test_experts_are_shared_by_a_tensor_group(sizes: dict[str, Any], num_processes: int, shares: int) -> None:
    backend = on_mesh(num_processes, shares, **sizes)
    assert_equals_one_device(backend, partial(mixtures.MixtureStep, mixtures.PlannedMixtures), **_WINDOW)


@pytest.mark.slow
@pytest.mark.numbers
def test_adapters_are_cut_as_the_layers_that_they_are_around() -> None:
    assert_equals_one_device(on_mesh(2, 1, tensor=2), partial(Step, Adapted), gradient_clip_val=0.3, max_steps=4)


def _shares(rank: Rank) -> Any:
    """Shapes of the parameters of experts on a rank, and how many they say they are. A wrong module is refused."""
    fabric = rank.fabric()
    net = mixtures.PlannedMixtures()
    fabric.setup(net)
    experts = [block.experts for block in net.blocks]
    shapes = [own_part(one).shape for each in experts for one in each.parameters()]
    fabric.teardown()
    with pytest.raises(CoreError, match="computes other values for tokens with several experts than for"):
        rank.trainer(max_steps=1).fit(mixtures.MixtureStep(_Normalizing), loader(4))
    return shapes, [one.num_experts for one in experts]


class _Normalizing(mixtures.Normalizing):
    tensor_parallel_plan = {"blocks.*.experts": "moe_tp_experts"}


def test_each_rank_of_a_tensor_group_has_some_of_the_experts() -> None:
    for shapes, counts in on_mesh(2, 1, tensor=2).run(_shares):
        assert {shape[0] for shape in shapes} == {2}
        assert counts == [4, 4]


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("Mixtral", 1e-12),
        pytest.param("DeepseekV2", 1e-5, marks=pytest.mark.exhaustive),  # attention and router are in float32
    ],
)
def test_mixtures_of_transformers_are_cut_by_the_plan_of_their_config(name: str, tolerance: float) -> None:
    pytest.importorskip("transformers")
    make = partial(mixtures.OfTransformers, name)
    assert_equals_one_device(on_mesh(2, 1, tensor=2), make, tolerance, gradient_clip_val=0.3)


_TENSOR = {"data": 2, "tensor": 2}
_BOTH = {"shard": 2, "tensor": 2}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"),
    in_both_forms(
        {
            "tensor-ddp": (on_mesh(4, 2, **_TENSOR), on_mesh(2, 2, DDPStrategy)),
            "both-fsdp": (on_mesh(4, 2, **_BOTH), on_mesh(2, 2, FSDPStrategy)),
            "ddp-tensor": (on_mesh(2, 2, DDPStrategy), on_mesh(4, 2, **_TENSOR)),
            "fsdp-both": (on_mesh(2, 2, FSDPStrategy), on_mesh(4, 2, **_BOTH)),
            "both-hybrid": (on_mesh(4, 2, **_BOTH), on_mesh(4, 4, shard=2)),
        },
        *("both-fsdp", "fsdp-both in one file"),
    ),
)
def test_a_run_goes_on_under_another_strategy(source: Backend, target: Backend, form: Any, tmp_path: Path) -> None:
    both = [replace(one, strategy=partial(one.strategy, checkpoint_io=form())) for one in (source, target)]
    assert_goes_on(*both, tmp_path / "step.ckpt")


def _lives_on(rank: Rank) -> bool:
    def fit() -> Any:
        trainer = rank.trainer(max_steps=1)
        trainer.fit(Step(), loader(8))
        return weakref.ref(trainer.strategy)

    strategy = fit()
    gc.collect()
    return strategy() is not None


def test_a_run_that_has_ended_is_let_go() -> None:
    """With its model, its groups and their threads."""
    assert on_mesh(2, 1, tensor=2).run(_lives_on) == [False, False]
