"""Experts together with the other axes compute what one device does, and what may go wrong between them is seen."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import combined
import mixed
import pytest
import torch
from axes import Seen, Step, in_both_forms
from faults import compares_no_ranks
from test_combined import OnCPU
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import PrepareModuleInput

from core import ModuleError
from core_parallel import ExpertLoad, MeshParallelStrategy
from core_parallel.experts import dispatch, expert_modules
from core_parallel.mesh import device_mesh as laid_out
from core_parallel.mesh.sizes import EXPERT_AXES
from core_parallel.pipeline.peers import Peers
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from pathlib import Path

    from core_testing.ranks import Rank

_WINDOWS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 3}  # of two epochs
_SHORT = {"gradient_clip_val": 0.1, "max_steps": 3}
_MESHES: list[dict[str, Any]] = [
    {"expert": 2, "shard": 2},
    {"expert": 2, "context": 2},
    {"expert": 2, "tensor": 2},
    {"expert": 2, "pipeline": 2, "schedule": "1F1B"},
]
_SHARD, _CONTEXT, _TENSOR, _PIPELINE = _MESHES
_RANKS = combined.ranks(4)


def _over_all(parameters: Any, mesh: Any) -> list[Any]:
    return list(parameters)


def _along_tensor(device_type: str, sizes: Any) -> DeviceMesh:
    shape = (sizes.pipeline, *sizes.of_experts, sizes.tensor)
    return DeviceMesh(device_type, torch.arange(4).reshape(shape).transpose(-2, -1), mesh_dim_names=EXPERT_AXES)


def _own_number(self: Any, number: float) -> float:
    return number


def _own_factor(self: Any, factor: Any, **_: Any) -> Any:
    return factor


def _whole_part(parameter: Any) -> Any:
    return parameter.to_local()


_FAULTS: list[tuple[str, dict[str, Any], list[tuple[Any, str, Any]]]] = [
    ("an expert's gradient is averaged over the shards of others", _SHARD, [(expert_modules, "average", _over_all)]),
    ("a part of the sequence counts twice", _CONTEXT, [(dispatch, "local_part", _whole_part)]),
    (
        "tokens of a tensor group are routed twice",
        _TENSOR,
        [(laid_out, "_lay_out_experts", _along_tensor), (dispatch.Dispatch, "_refuse_parts", lambda *_: None)],
    ),
    (
        "losses of a schedule are by weights of one rank",
        _PIPELINE,
        [(Peers, "reference", _own_number), (Peers, "common_factor", _own_factor)],
    ),
]


def _train_on_all(rank: Rank) -> list[Any]:
    return [combined.train(rank, mesh, _WINDOWS, make=mixed.make)[0] for mesh in _MESHES] + [_load(rank, _PIPELINE)]


def _load(rank: Rank, mesh: Any) -> dict[str, float]:
    trainer = rank.trainer(combined.strategy_of(mesh), max_steps=2, callbacks=ExpertLoad(), log_every_n_steps=2)
    trainer.fit(mixed.make(), combined.loader(8 // combined.data_parallel_size(rank.backend.num_processes, mesh or {})))
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name != "loss"}


@pytest.mark.slow
@pytest.mark.numbers
def test_windows_equal_one_device_on_every_mesh() -> None:
    expected, _ = one_device("cpu").run(partial(combined.train, make=mixed.make), None, _WINDOWS)[0]
    *found, load = _RANKS.run(_train_on_all)[0]
    assert load == pytest.approx(one_device("cpu").run(_load, None)[0])
    for mesh, weights in zip(_MESHES, found, strict=True):
        differs = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
        assert differs < 1e-12, (mesh, differs)


def _train_with_faults(rank: Rank) -> list[Any]:
    found = []
    for _, mesh, patches in _FAULTS:
        laid_out.forget()
        with ExitStack() as stack:
            stack.enter_context(compares_no_ranks())
            for owner, name, fault in patches:
                stack.enter_context(mock.patch.object(owner, name, fault))
            found.append(combined.train(rank, mesh, _SHORT, make=mixed.make)[0])
    return found


@pytest.mark.slow
@pytest.mark.numbers
def test_faults_between_the_axes_are_seen() -> None:
    expected, _ = one_device("cpu").run(partial(combined.train, make=mixed.make), None, _SHORT)[0]
    for (fault, *_), weights in zip(_FAULTS, _RANKS.run(_train_with_faults)[0], strict=True):
        differs = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
        assert differs > 1e-6, (fault, differs)


_FAR: list[Any] = [
    {"expert": 2, "pipeline": 2},
    {"expert": 2, "pipeline": 2, "shard": 2, "data": 1, "schedule": "1F1B"},
    # Experts of a schedule are those of the one above, and experts beside a context group those of `_CONTEXT`.
    *(
        pytest.param({"expert": 2, "pipeline": 2, **axes}, marks=pytest.mark.exhaustive)
        for axes in ({"schedule": "ZBVZeroBubble"}, {"context": 2, "data": 1, "schedule": "GPipe"})
    ),
]


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("mesh", _FAR, ids=str)
def test_experts_of_the_first_and_the_last_stage_equal_one_device(mesh: dict[str, Any]) -> None:
    assert combined.difference(mesh, 4, _WINDOWS, mixed.make_at_the_ends) < 1e-12


_SHARDS = {"expert": 2, "pipeline": 2, "shard": 2, "data": 1}
_RESUMED: dict[str, tuple[tuple[Any, int], tuple[Any, int]]] = {
    "pipeline-ddp": ((_PIPELINE, 4), ({"alias": "ddp"}, 2)),
    "fsdp-pipeline": (({"alias": "fsdp"}, 2), (_PIPELINE, 4)),
    "shards-context": ((_SHARDS, 4), (_CONTEXT, 4)),
    "tensor-shards": ((_TENSOR, 4), (_SHARDS, 4)),
}


# Tensor groups share a distributed expert's parameters whole, and test_tensor.py reads what they have cut elsewhere.
@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"), in_both_forms(_RESUMED, "shards-context", "pipeline-ddp in one file")
)
def test_a_run_goes_on_in_another_layout(
    source: tuple[Any, int], target: tuple[Any, int], form: Any, tmp_path: Path
) -> None:
    combined.assert_goes_on(source, target, form, tmp_path / "step.ckpt", mixed.make)


class _Overflows(Step):
    """Gradients of one rank overflow in one step."""

    def __init__(self) -> None:
        super().__init__(mixed.MixedNet)
        self.float()
        self.seen: list[float] = []
        self.net.head.register_full_backward_pre_hook(self.spoil)

    def spoil(self, module: nn.Module, gradients: Any) -> Any:
        strategy = self.trainer.strategy
        spoils = strategy.global_rank == strategy.world_size - 1 and self.trainer.global_step == 2 and not self.seen[2:]
        return tuple(one * float("inf") if spoils else one for one in gradients)

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(self.trainer.strategy.precision_plugin.scaler.get_scale())


def _overflow(rank: Rank, meshes: list[Any]) -> list[Any]:
    found = []
    for mesh in meshes:
        module, seen = _Overflows(), Seen()
        strategy = "single_device" if mesh is None else MeshParallelStrategy(**mesh)
        options = {"gradient_clip_val": 0.3, "limit_train_batches": 6, "max_epochs": 1, "callbacks": seen}
        trainer = rank.trainer(strategy=strategy, plugins=[rank.environment, OnCPU()], **options)
        shares = combined.data_parallel_size(rank.backend.num_processes, mesh or {})
        trainer.fit(module, combined.loader(8 // shares, 32))
        found.append((trainer.global_step, module.seen, seen.weights))
    return found


@pytest.mark.slow
@pytest.mark.numbers
def test_an_overflow_of_one_rank_is_one_of_all() -> None:
    steps, scales, weights = one_device("cpu").run(_overflow, [None])[0][0]
    assert steps == 3, "of four batches one overflows"
    for number, found in enumerate(zip(*combined.ranks(2).run(_overflow, [{"expert": 2}, _SHARD]), strict=True)):
        for own_steps, own_scales, own_weights in found:
            assert (own_steps, own_scales) == (steps, scales)
            if not number:
                combined.assert_alike_in_float16(own_weights, weights)


class _Beside(mixed.MixedNet):
    """One of its parts is a function, which calls a mixture that is no part."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = self.blocks.pop(1)

    def pipeline(self) -> list[Any]:
        return [self.start, self.blocks[0], self.mix, *self.blocks[1:], self.head]

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixture(x)


class _Scaled(Step):
    """Its loss is scaled by the rank after a schedule has had it."""

    def __init__(self) -> None:
        super().__init__(mixed.MixedNet)

    def backward(self, loss: torch.Tensor) -> None:
        (loss * (1 + self.trainer.strategy.data_parallel_rank)).backward()


def _errors(rank: Rank) -> list[str]:
    plan = {
        "net.blocks.0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        )
    }
    refused: list[tuple[Any, Any]] = [
        ({**_TENSOR, "tensor_plan": plan}, mixed.make),
        ({"expert": 2, "pipeline": 2}, partial(Step, _Beside)),
        (_PIPELINE, _Scaled),
    ]
    errors = []
    for mesh, make in refused:
        with pytest.raises(ModuleError) as caught:
            rank.trainer(MeshParallelStrategy(**mesh), max_steps=1).fit(make(), combined.loader(4))
        errors.append(str(caught.value))
    return errors


@pytest.mark.slow
def test_what_would_be_wrong_is_refused_by_name() -> None:
    for tokens, outside, scaled in _RANKS.run(_errors):
        assert "Stacked 'net.blocks.1.experts' was called with other tokens on each rank of a tensor group" in tokens
        assert "The experts 'net.mixture.experts' are in no part of the pipeline" in outside
        assert re.search(r"Losses of ranks whose experts are distributed are scaled by \S+ to \S+ after", scaled)
