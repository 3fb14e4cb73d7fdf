"""A pipeline together with tensor, shard and context, and shard with context, compute what one device does."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import combined
import pytest
import torch
from all_layouts import differing
from axes import Seen, Step, in_both_forms
from combined import Net, assert_alike_in_float16, difference, ranks
from torch import nn

from core import ConfigurationError, ModuleError, WorkerError
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.precision import MixedPrecision
from core_parallel import MeshParallelStrategy
from core_parallel.communication import overflow
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from core_testing.ranks import Rank

_CLIPPED = {"gradient_clip_val": 0.3}
_AGAIN = {**_CLIPPED, "activation_checkpointing": "units", "max_steps": 4}
_WINDOWS = {**_CLIPPED, "accumulate_grad_batches": 2, "max_steps": 3}  # of two epochs


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ({"pipeline": 2, "tensor": 2}, _WINDOWS),
        ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, _WINDOWS),
        ({"pipeline": 2, "context": 2, "schedule": "ZBVZeroBubble"}, _AGAIN),
        ({"shard": 2, "context": 2}, _WINDOWS),
    ],
    ids=str,
)
def test_weights_equal_one_device(mesh: dict[str, Any], options: dict[str, Any]) -> None:
    assert difference(mesh, 4, options) < 1e-12


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "num_processes"),
    [
        pytest.param({"pipeline": 2, "tensor": 2, "schedule": "ZBVZeroBubble"}, 4, marks=pytest.mark.exhaustive),
        pytest.param({"pipeline": 2, "shard": 2}, 4, marks=pytest.mark.exhaustive),
        pytest.param({"pipeline": 2, "context": 2}, 4, marks=pytest.mark.exhaustive),
        pytest.param({"pipeline": 2, "tensor": 2, "schedule": "Interleaved1F1B"}, 4, marks=pytest.mark.exhaustive),
        pytest.param(
            {"pipeline": 2, "shard": 2, "tensor": 2, "schedule": "Interleaved1F1B"}, 8, marks=pytest.mark.exhaustive
        ),
        pytest.param({"pipeline": 2, "context": 2, "data": 2, "schedule": "GPipe"}, 8, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_windows_of_further_combinations_equal_one_device(mesh: dict[str, Any], num_processes: int) -> None:
    assert difference(mesh, num_processes, _WINDOWS) < 1e-12


_FACTORS = [1.0]


@contextmanager
def _within_factor() -> Iterator[None]:
    _FACTORS[0] = 1.3
    try:
        yield
    finally:
        _FACTORS[0] = 1.0


class _ScaledBlock(combined.Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * _FACTORS[0]


class _ScaledNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_ScaledBlock() for _ in range(4))


class _CallsInBlock(Step):
    """What the block around the call sets holds in every stage."""

    def __init__(self) -> None:
        super().__init__(_ScaledNet)

    def compute(self, words: torch.Tensor) -> torch.Tensor:
        with _within_factor():
            return super().compute(words)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.exhaustive
@pytest.mark.parametrize("axis", ["context", "shard"])
def test_a_block_around_the_call_holds_in_all_stages(axis: str) -> None:
    mesh = {"pipeline": 2, axis: 2, "schedule": "1F1B"}
    assert difference(mesh, 4, {**_CLIPPED, "max_steps": 3}, _CallsInBlock) < 1e-12


_RESUMED: dict[str, tuple[tuple[Any, int], tuple[Any, int]]] = {
    "tensor-ddp": (({"pipeline": 2, "tensor": 2, "schedule": "1F1B"}, 4), ({"alias": "ddp"}, 2)),
    "fsdp-shard": (({"alias": "fsdp"}, 2), ({"pipeline": 2, "shard": 2}, 4)),
    "shard-context": (({"pipeline": 2, "shard": 2, "schedule": "ZBVZeroBubble"}, 4), ({"shard": 2, "context": 2}, 4)),
    "context-tensor": (({"pipeline": 2, "context": 2}, 4), ({"pipeline": 2, "tensor": 2}, 4)),
}


# Context cuts no parameter, and `test_a_checkpoint_comes_back_bit_for_bit` reads into a pipeline of tensor groups.
@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"), in_both_forms(_RESUMED, "shard-context", "tensor-ddp in one file")
)
def test_a_run_goes_on_in_another_layout(
    source: tuple[Any, int], target: tuple[Any, int], form: Any, tmp_path: Path
) -> None:
    combined.assert_goes_on(source, target, form, tmp_path / "step.ckpt")


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "form"),
    [
        ({"pipeline": 2, "tensor": 2}, DistributedCheckpointIO),
        ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, TorchCheckpointIO),
        pytest.param({"pipeline": 2, "tensor": 2}, TorchCheckpointIO, marks=pytest.mark.exhaustive),
        pytest.param(
            {"pipeline": 2, "shard": 2, "schedule": "1F1B"}, DistributedCheckpointIO, marks=pytest.mark.exhaustive
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_checkpoint_comes_back_bit_for_bit(mesh: dict[str, Any], form: Any, tmp_path: Path) -> None:
    first, away, back = (tmp_path / name for name in ("first", "away", "back"))
    ranks(4).run(combined.carry, mesh, form, None, first)
    one_device("cpu").run(combined.carry, None, TorchCheckpointIO, first, away)
    ranks(4).run(combined.carry, mesh, form, away, back)
    saved, *others = (one_device("cpu").run(combined.read, path)[0] for path in (first, away, back))
    for other in others:
        assert not list(differing(saved, other))


class _Wrong(Net):
    """Its parts leave out a block."""

    def pipeline(self) -> list[Any]:
        return [self.start, *self.blocks[1:], self.head]


class _Scalar(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.extra = nn.Parameter(torch.tensor(1.0))


class _Untold(Net):
    tensor_parallel_plan = None


class _Far(Net):
    """Takes places from the length that it sees."""

    def forward(self, words: Any, places: Any) -> Any:
        return super().forward(words, torch.arange(words.shape[1]).expand_as(words))

    def pipeline(self) -> list[Any]:
        def start(words: Any, places: Any) -> Any:
            return words, torch.arange(words.shape[1]).expand_as(words)

        return [start, _called(self.start), *super().pipeline()[1:]]


def _called(module: nn.Module) -> Any:
    return lambda given: module(*given)


_REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"pipeline": 2, "tensor": 2}, _Wrong, r"_Wrong\.forward isn't its parts one after the other"),
    ({"pipeline": 2, "shard": 2}, _Wrong, r"_Wrong\.forward isn't its parts one after the other"),
    ({"pipeline": 2, "context": 2}, _Wrong, r"_Wrong\.forward isn't its parts one after the other"),
    ({"pipeline": 2, "shard": 2}, _Scalar, r"'net\.head\.extra' of Step is a parameter of shape \(\)"),
    ({"pipeline": 2, "tensor": 2}, _Untold, "_Untold has no plan|Step has no plan"),
]


def _errors(rank: Rank) -> list[str]:
    errors = []
    for mesh, make, _ in _REFUSED:
        with pytest.raises(ModuleError) as caught:
            rank.trainer(strategy=MeshParallelStrategy(**mesh), max_steps=1).fit(Step(make), combined.loader(8))
        errors.append(str(caught.value))
    return errors


@pytest.mark.slow
def test_models_that_cannot_be_right_are_refused_by_name() -> None:
    for (mesh, _, expected), *errors in zip(_REFUSED, *ranks(4).run(_errors), strict=True):
        assert any(re.search(expected, error) for error in errors), (mesh, errors)


def test_options_of_units_are_refused_beside_a_pipeline() -> None:
    with pytest.raises(ConfigurationError, match=r"forward_prefetch=\.\.\.\) isn't there yet with a pipeline"):
        MeshParallelStrategy(pipeline=2, shard=2, forward_prefetch=True)
    for axes in ({"pipeline": 2, "shard": 2}, {"tensor": 2}):
        with pytest.raises(ConfigurationError, match="Give activation_checkpointing='units' to Trainer or Fabric"):
            MeshParallelStrategy(**axes, activation_checkpointing=True)


class OnCPU(MixedPrecision):
    """float16, also on a CPU."""

    def __init__(self) -> None:
        super().__init__(torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3))

    def connect(self, strategy: Any) -> None:
        """Learn nothing."""


class _Overflows(Step):
    """Gradients of the head, which the last stage has, overflow in one step; of the first stage nothing learns."""

    def __init__(self) -> None:
        super().__init__(Net)
        self.float()
        self.seen: list[float] = []
        self.net.head.register_full_backward_pre_hook(self.spoil)
        for part in (self.net.start, *self.net.blocks[:3]):
            part.requires_grad_(False)

    def spoil(self, module: nn.Module, gradients: Any) -> Any:
        return tuple(
            one * float("inf") if self.trainer.global_step == 2 and not self.seen[2:] else one for one in gradients
        )

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(self.trainer.strategy.precision_plugin.scaler.get_scale())


def _overflow(rank: Rank, mesh: dict[str, Any] | None, learns: bool) -> Any:
    module, seen = _Overflows(), Seen()
    module.scale.requires_grad_(learns)
    strategy = "single_device" if mesh is None else MeshParallelStrategy(**mesh)
    options = {"gradient_clip_val": 0.3, "limit_train_batches": 6, "max_epochs": 1, "callbacks": seen}
    trainer = rank.trainer(strategy=strategy, plugins=[rank.environment, OnCPU()], **options)
    trainer.fit(module, combined.loader(8))
    return trainer.global_step, module.seen, seen.weights


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "learns"),
    [
        pytest.param({"pipeline": 2, "tensor": 2}, True, marks=pytest.mark.exhaustive),
        ({"pipeline": 2, "tensor": 2, "schedule": "1F1B"}, False),
    ],
    ids=["every stage learns", "the first stage learns nothing"],
)
def test_an_overflow_of_one_stage_is_one_of_all_ranks(mesh: dict[str, Any], learns: bool) -> None:
    expected = one_device("cpu").run(_overflow, None, learns)[0]
    assert expected[0] == 3, "of four batches one overflows"
    for steps, scales, _ in (found := ranks(4).run(_overflow, mesh, learns)):
        assert (steps, scales) == (expected[0], expected[1])
    assert_alike_in_float16(found[0][2], expected[2])


_unscale = overflow._unscale


def _unscale_alone(*options: Any) -> Any:
    with mock.patch.object(torch.distributed, "all_reduce"):
        return _unscale(*options)


@pytest.mark.slow
@pytest.mark.numbers
def test_an_overflow_that_a_rank_keeps_to_itself_is_seen() -> None:
    with mock.patch.object(overflow, "_unscale", _unscale_alone), pytest.raises(WorkerError, match="a loss of nan"):
        ranks(4).run(_overflow, {"pipeline": 2, "tensor": 2}, True)
