"""Experts together with the other axes compute what one device does, and what may go wrong between them is seen."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import combined
import mixed
import pytest
import torch
from axes import Seen, Step
from test_combined import OnCPU
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import PrepareModuleInput

from core import ModuleError
from core_parallel import ParallelStrategy, dispatch, experts
from core_parallel import mesh as laid_out
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from core_testing.ranks import Rank

_WINDOWS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 4}
_SHORT = {"gradient_clip_val": 0.1, "max_steps": 3}
_MESHES: list[dict[str, Any]] = [
    {"expert": 2, "shard": 2},
    {"expert": 2, "context": 2},
    {"expert": 2, "tensor": 2},
]
_SHARD, _CONTEXT, _TENSOR = _MESHES
_RANKS = replace(combined.ranks(4), timeout_s=150)


def _over_all(parameters: Any, mesh: Any) -> list[Any]:
    return list(parameters)


def _along_tensor(device_type: str, sizes: Any) -> DeviceMesh:
    shape = (sizes.pipeline, *sizes.of_experts, sizes.tensor)
    return DeviceMesh(device_type, torch.arange(4).reshape(shape).transpose(-2, -1), mesh_dim_names=experts._AXES)


def _whole_part(parameter: Any) -> Any:
    return parameter.to_local()


_FAULTS: list[tuple[str, dict[str, Any], list[tuple[Any, str, Any]]]] = [
    ("an expert's gradient is averaged over the shards of others", _SHARD, [(experts, "average", _over_all)]),
    ("a part of the sequence counts twice", _CONTEXT, [(dispatch, "local_part", _whole_part)]),
    (
        "tokens of a tensor group are routed twice",
        _TENSOR,
        [(experts, "lay_out", _along_tensor), (dispatch.Dispatch, "_refuse_parts", lambda *_: None)],
    ),
]


def _train_on_all(rank: Rank) -> list[Any]:
    return [combined.train(rank, mesh, _WINDOWS, make=mixed.make)[0] for mesh in _MESHES]


@pytest.mark.numbers
def test_windows_equal_one_device_on_every_mesh() -> None:
    expected, _ = one_device("cpu").run(partial(combined.train, make=mixed.make), None, _WINDOWS)[0]
    for mesh, weights in zip(_MESHES, _RANKS.run(_train_on_all)[0], strict=True):
        differs = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
        assert differs < 1e-12, (mesh, differs)


def _train_with_faults(rank: Rank) -> list[Any]:
    found = []
    for _, mesh, patches in _FAULTS:
        laid_out.forget()
        with ExitStack() as stack:
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
        strategy = "single_device" if mesh is None else ParallelStrategy(**mesh)
        options = {"gradient_clip_val": 0.3, "limit_train_batches": 6, "max_epochs": 1, "callbacks": seen}
        trainer = rank.trainer(strategy=strategy, plugins=[rank.environment, OnCPU()], **options)
        shares = combined.data_parallel_size(rank.backend.num_processes, mesh or {})
        trainer.fit(module, combined.loader(8 // shares, 32))
        found.append((trainer.global_step, module.seen, seen.weights))
    return found


@pytest.mark.numbers
def test_an_overflow_of_one_rank_is_one_of_all() -> None:
    steps, scales, weights = one_device("cpu").run(_overflow, [None])[0][0]
    assert steps == 3, "of four batches one overflows"
    for number, found in enumerate(zip(*combined.ranks(2).run(_overflow, [{"expert": 2}, _SHARD]), strict=True)):
        for own_steps, own_scales, own_weights in found:
            assert (own_steps, own_scales) == (steps, scales)
            for name, value in ({} if number else weights).items():
                torch.testing.assert_close(own_weights[name], value, atol=2e-2, rtol=0)


def _error(rank: Rank) -> str:
    plan = {
        "net.blocks.0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        )
    }
    with pytest.raises(ModuleError) as caught:
        rank.trainer(ParallelStrategy(**_TENSOR, tensor_plan=plan), max_steps=1).fit(mixed.make(), combined.loader(4))
    return str(caught.value)


def test_parts_of_a_sequence_of_a_tensor_group_are_refused() -> None:
    for error in _RANKS.run(_error):
        assert "Stacked 'net.blocks.1.experts' was called with other tokens on each rank of a tensor group" in error
