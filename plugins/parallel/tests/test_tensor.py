"""Layers cut over a tensor group, and parameters over shards, compute what one device does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from axes import WORDS, Net, Step, assert_equals_one_device, assert_goes_on, in_both_forms, on_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from core import CoreError
from core.strategies import DDPStrategy, FSDPStrategy

if TYPE_CHECKING:
    from pathlib import Path

    from core_testing.ranks import Backend, Rank

_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 10}


_SLOW = pytest.mark.slow


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "data_parallel_size", "options"),
    [
        pytest.param({"tensor": 2}, 2, 1, {}, marks=_SLOW),
        pytest.param({"shard": 2}, 2, 2, {}, marks=_SLOW),
        ({"tensor": 2}, 2, 1, _WINDOW),
        ({"shard": 2}, 2, 2, _WINDOW),
        pytest.param({"tensor": 2, "shard": 2}, 4, 2, _WINDOW, marks=_SLOW),
        pytest.param({"data": 2, "shard": 2}, 4, 4, _WINDOW, marks=_SLOW),
        pytest.param({"data": 2, "tensor": 2}, 4, 2, _WINDOW, marks=_SLOW),
        pytest.param({"tensor": 2, "shard": 2}, 4, 2, {}, marks=pytest.mark.exhaustive),
        pytest.param({"data": 2, "tensor": 2}, 4, 2, {}, marks=pytest.mark.exhaustive),
        pytest.param({"data": 2, "shard": 2}, 4, 4, {}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_twenty_steps_equal_one_device(
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


_REFUSED: list[tuple[Any, str]] = [
    (
        _OfPlan,
        "_OfPlan has no plan: neither the strategy's argument tensor_plan=, nor an attribute",
    ),
    (_Unknown, r"The plan for 'blocks\.0\.up' is 'columns'; expected one of torch's styles, or one of 'colwise'"),
    (_Nothing, r"names 'layers\.\*\.up', and _Nothing has no such module or parameter\. It has 'embed'"),
    (_Tied, r"'embed\.weight' and 'head\.weight' share a weight"),
    (_Odd, "'head' has 11 rows, and tensor=2 doesn't divide that"),
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
        *("both-fsdp", "fsdp-both"),
    ),
)
def test_a_run_goes_on_under_another_strategy(source: Backend, target: Backend, form: Any, tmp_path: Path) -> None:
    both = [replace(one, strategy=partial(one.strategy, checkpoint_io=form())) for one in (source, target)]
    assert_goes_on(*both, tmp_path / "step.ckpt")
