"""Experts distributed over the ranks of a group compute what one device does, and are refused where they can't."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mixtures
import pytest
import torch
from axes import Net, Saves, assert_equals_one_device, assert_goes_on, begin, in_both_forms, loader, on_mesh
from mixtures import MixtureNet, MixtureStep
from torch import nn

from core import CoreError, ModuleError
from core.checkpoint import load_checkpoint
from core.strategies import DDPStrategy
from core_parallel import ExpertList, MeshParallelStrategy
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from pathlib import Path

    from core_testing.ranks import Backend, Rank

_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 4}


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes"),
    [
        ({"expert": 2}, 2),
        pytest.param({"data": 4, "expert": 2}, 4, marks=pytest.mark.slow),
        pytest.param({"expert": "auto"}, 4, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.exhaustive), _WINDOW], ids=["steps", "windows"])
def test_steps_equal_one_device(sizes: dict[str, Any], num_processes: int, options: dict[str, Any]) -> None:
    assert_equals_one_device(on_mesh(num_processes, num_processes, **sizes), MixtureStep, **options)


@pytest.mark.numbers
@pytest.mark.parametrize("make", [mixtures.Capacity, mixtures.OfHalf])
def test_left_out_tokens_and_common_parameters_are_as_on_one_device(make: Any) -> None:
    assert_equals_one_device(on_mesh(2, 2, expert=2), partial(MixtureStep, make))


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", pytest.param("Olmoe", marks=pytest.mark.exhaustive)])
def test_a_transformers_model_is_distributed_by_the_plan_of_its_config(name: str) -> None:
    pytest.importorskip("transformers")
    assert_equals_one_device(on_mesh(2, 2, expert=2), partial(mixtures.OfTransformers, name), gradient_clip_val=0.3)


@pytest.mark.slow
@pytest.mark.numbers
def test_experts_compute_again_in_backward() -> None:
    options: dict[str, Any] = {"activation_checkpointing": "units", "gradient_clip_val": 0.3}
    assert_equals_one_device(on_mesh(2, 2, expert=2), partial(MixtureStep, mixtures.Capacity), **options)


def _distribute_anew(rank: Rank) -> str:
    module = MixtureStep()
    rank.trainer(max_steps=1).fit(module, loader(4))
    with pytest.raises(ModuleError) as caught:
        rank.trainer(MeshParallelStrategy(expert=4), max_steps=1).fit(module, loader(4))
    return str(caught.value)


@pytest.mark.slow
def test_experts_that_are_distributed_otherwise_are_refused() -> None:
    for error in _COPIES.run(_distribute_anew):
        assert re.search(r"distributed already, over the ranks \[\d, \d\], and not over \[0, 1, 2, 3\]", error)


_EXPERT = on_mesh(2, 2, expert=2)
_COPIES = on_mesh(4, 4, expert=2)
_DDP = on_mesh(2, 2, DDPStrategy)
_SHARDS = on_mesh(4, 4, expert=2, shard=2)
_RESUMED = {
    "expert-ddp": (_EXPERT, _DDP),
    "copies-expert": (_COPIES, _EXPERT),
    "ddp-copies": (_DDP, _COPIES),
    "expert-shard": (_EXPERT, on_mesh(2, 2, shard=2)),
    "shards-ddp": (_SHARDS, _DDP),
    "ddp-shards": (_DDP, _SHARDS),
    "context-shards": (on_mesh(4, 2, expert=2, context=2), on_mesh(4, 4, expert=4, shard=2)),
}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"), in_both_forms(_RESUMED, "copies-expert", "context-shards", "shards-ddp in one file")
)
def test_a_run_goes_on_in_the_middle_of_an_epoch(source: Backend, target: Backend, form: Any, tmp_path: Path) -> None:
    both = [replace(one, strategy=partial(one.strategy, checkpoint_io=form())) for one in (source, target)]
    assert_goes_on(*both, tmp_path / "step.ckpt", MixtureStep)


def _carry(rank: Rank, source: Path, target: Path) -> None:
    trainer = rank.trainer(max_steps=3, max_epochs=10, callbacks=Saves(target))
    trainer.fit(MixtureStep(), loader(8 // rank.backend.data_parallel_size), ckpt_path=source)


@pytest.mark.slow
@pytest.mark.numbers
def test_state_goes_round_the_strategies_bit_for_bit(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.ckpt" for number in range(5)]
    _EXPERT.run(begin, paths[0], MixtureStep)
    for number, backend in enumerate([_DDP, _COPIES, one_device("cpu"), _EXPERT]):
        backend.run(_carry, paths[number], paths[number + 1])
    first, *others = map(load_checkpoint, paths)
    for other in others:
        for name, value in first["model"].items():
            assert torch.equal(value, other["model"][name]), name
        moments, found = (checkpoint["optimizers"][0]["state"] for checkpoint in (first, other))
        assert len(moments) == len(first["model"]) == len(found)
        for name, entry in moments.items():
            assert all(torch.equal(value, found[name][key]) for key, value in entry.items()), name


_REFUSED: list[tuple[Any, str]] = [
    (Net, r"Net has no experts that are known: .* core_parallel\.ExpertList makes one of a list"),
    (mixtures.Odd, r"'blocks\.0\.experts' has 3 experts, and expert=2 doesn't divide that"),
    (mixtures.OtherNames, r"names 'layers\.\*\.experts', and OtherNames has no such module"),
    (mixtures.Whole, r"'blocks\.0' must have the number of experts as their first dim, and it has 'norm\.weight'"),
    (mixtures.Unknown, r"for 'blocks\.0\.experts' is 'spread'; expected 'ep_dispatch_experts' for a module"),
    (mixtures.Tied, r"'blocks\.0\.experts\.up' and 'blocks\.1\.experts\.up' share a parameter of experts"),
    (mixtures.Normalizing, r"_Normalizing 'blocks\.0\.experts' computes other values for tokens with several experts"),
    (mixtures.Sequences, r"Stacked 'blocks\.0\.experts' was called with \[\(2, 3, 16\), \(2, 3, 2\), \(2, 3, 2\)\]"),
]


def _errors(rank: Rank) -> list[str]:
    errors = []
    for make, _ in _REFUSED:
        fabric = rank.fabric()
        words = torch.zeros(2, 3, dtype=torch.long)
        with pytest.raises(CoreError) as caught:
            fabric.setup(make())(words, words)
        errors.append(str(caught.value))
        fabric.teardown()
    return errors


def test_models_whose_experts_cannot_be_distributed_are_refused_with_the_reason() -> None:
    for errors in _EXPERT.run(_errors):
        for error, (_, expected) in zip(errors, _REFUSED, strict=True):
            assert re.search(expected, error), error


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([nn.Linear(2, 2), nn.Linear(3, 2)], r"experts of one class with the same parameters, and got \('Linear'"),
        ([], "and got none"),
        ([nn.BatchNorm1d(2), nn.BatchNorm1d(2)], "without buffers, and BatchNorm1d has some"),
    ],
    ids=["unlike", "none", "buffers"],
)
def test_a_list_of_other_experts_is_refused(members: Any, expected: str) -> None:
    with pytest.raises(ModuleError, match=expected):
        ExpertList(members)


def test_a_list_computes_what_its_members_do() -> None:
    torch.manual_seed(0)
    members = [mixtures.one_expert() for _ in range(3)]
    tokens, weights = torch.randn(5, mixtures.WIDTH), torch.rand(5, 2)
    numbers = torch.tensor([[0, 2], [2, 0], [0, 2], [2, 2], [3, 0]])  # none for 1, and one past the last
    expected = torch.stack(
        [
            sum(w * members[n](x) for w, n in zip(ws, ns, strict=True) if n < 3)
            for x, ws, ns in zip(tokens, weights, numbers.tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(ExpertList(members)(tokens, numbers, weights), expected)
    assert MixtureNet().blocks[1].experts.each[0].weight.shape == (4, 32, 16)
