"""The suite of algorithms that are meant to differ from one device: local SGD, compression,
averaging with peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import Tensor

from core import Capability
from core_testing.cases import Case
from core_testing.marks import of_several
from core_testing.networks import GLOBAL_BATCH_SIZE, NUM_FEATURES, Perceptron
from core_testing.strategy.base import StrategySuite
from core_testing.strategy.checkpoints import ResumeTests
from core_testing.strategy.suite import StrategyConformance, StrategySmoke
from core_testing.training import (
    TrainingRecord,
    assert_close_losses,
    assert_equal_runs,
    assert_equal_tensors,
)

if TYPE_CHECKING:
    from core import Module
    from core_testing.ranks import Rank

_NUM_STEPS = 64
_NUM_OUTPUTS = 8
_NOT_PROMISED = {
    "test_losses_are_weighted": "means of losses follow its own weights",
    "test_streams_are_weighted": "means of losses follow its own weights",
    "test_optimizer_state_equals_one_device": "moments follow each algorithm's own gradients",
    "test_gradient_clipping_returns_the_norm": "the norm is that of each algorithm's own gradients",
}
_AGREEING = "test_ranks_compute_the_same_model"


@dataclass(frozen=True)
class Differs:
    """The promises of an algorithm that is meant to differ from one device: the one declaration of
    its suite.

    Attributes:
        because: why it differs, in a few words that skipped tests repeat.
        within: how far losses, and weights at the end of a short run, may be from those of one
            device, relative to the largest of them.
        steps_outstanding: of the gradients of at most so many steps it may hold back what it hasn't
            sent yet. A number that doesn't grow with the length of a run: what is never sent shows.
        agrees_after: number of steps without change after which all ranks have the same weights: 0
            if they have in every step; None if they have only where `synchronize_model` is called.
    """

    because: str
    within: float
    steps_outstanding: float = 0.0
    agrees_after: int | None = 0


class DifferingTests(StrategySuite):
    """The tests that take the place of equality with one device. `differs` says how much."""

    differs: ClassVar[Differs]

    def left_out(self, test: str) -> str | None:
        """Tests whose subject is equality with one device, or of ranks that don't promise it."""
        reason = _NOT_PROMISED.get(test)
        if test == _AGREEING and self.differs.agrees_after != 0:
            reason = "ranks have the same weights now and then, or after synchronize_model"
        if reason is None:
            return super().left_out(test)
        return f"{self.alias} is meant to differ from one device ({self.differs.because}): {reason}"

    def assert_like_one_device(
        self, run: TrainingRecord, expected: TrainingRecord, tolerance: float | None = None
    ) -> None:
        """Losses within the declared bound; steps and learning rates exactly."""
        assert_close_losses(run, expected, max(self.differs.within, tolerance or 0.0))

    def assert_weights_like_one_device(
        self, found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
    ) -> None:
        """Within the declared bound."""
        assert_equal_tensors(found, expected, max(self.differs.within, tolerance))

    @property
    def exchange_tolerance(self) -> float:
        """Any: what is exchanged isn't everybody's mean gradient."""
        return math.inf

    def assert_continues(self, run: TrainingRecord, expected: TrainingRecord) -> None:
        """Losses within the declared bound; `test_resume_is_bit_exact` is strict."""
        assert_close_losses(run, expected, self.differs.within)

    def assert_repeats(self, run: TrainingRecord, expected: TrainingRecord) -> None:
        """Exactly, if it says of itself that it can; otherwise within the declared bound."""
        if Capability.BIT_EXACT_RESUME in self.declared():
            assert_equal_runs(run, expected, self.tolerance)
        else:
            assert_close_losses(run, expected, self.differs.within)

    def test_no_gradient_is_lost(self) -> None:
        """Gradients that were held back come later: of constant ones, no more than declared is
        missing in the end.
        """
        case = self.adapted(Case("constant", network=Linear, optimizer=_plain))
        found = self.run(_train_on_constant_gradients, case)
        begin, end = self.one_device.run(_train_on_constant_gradients, case)[0]
        a_step = (end - begin).abs().max().item() / _NUM_STEPS
        for rank, (_, weights) in enumerate(found):
            missing = (weights - end).abs().max().item() / a_step
            assert missing <= self.differs.steps_outstanding + self.tolerance * _NUM_STEPS, (
                f"after {_NUM_STEPS} steps with the same gradients, rank {rank} lacks those of "
                f"{missing:.3g} steps, and {self.differs.steps_outstanding:g} are declared: the "
                "rest of a compression, or a rank, is left out, or steps go further than those of "
                "one device"
            )

    @of_several
    def test_ranks_agree_in_time(self) -> None:
        """All ranks, once nothing changes any more, have the same weights after the declared number
        of steps.
        """
        if (rounds := self.differs.agrees_after) is None:
            pytest.skip(f"{self.alias} promises the same weights after synchronize_model only")
        first, *others = self.run(
            partial(_train_and_synchronize, num_rounds=rounds), self.adapted(Case("agreement"))
        )
        scale = first.abs().max().item()
        for rank, weights in enumerate(others, start=1):
            distance = (weights - first).abs().max().item()
            assert distance <= self.tolerance * scale, (
                f"ranks {rank} and 0 are {distance:.3g} apart, {rounds} steps without change after "
                "the last one"
            )


class DifferingConformance(DifferingTests, StrategyConformance):
    """All that a strategy must prove which is meant to differ from one device. Set `alias` and
    `differs`.

    The tests are those of `StrategyConformance`. Where these compare with one device, losses have
    to stay within the declared bound; two, or three, whose subject is that equality are skipped,
    and say so. Two take their place.
    """


class DifferingSmoke(DifferingTests, ResumeTests, StrategySmoke):
    """The short suite of another algorithm, or of other options, of a strategy that passes the long
    one.
    """


class Linear(Perceptron):
    """One layer without activation, whose mean output has a gradient that doesn't depend on its
    weights.
    """

    def add_parts(self) -> None:
        """Replace the layers: what is never called would have no gradient."""
        del self.first, self.last
        self.layer = torch.nn.Linear(NUM_FEATURES, _NUM_OUTPUTS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 6) to (batch, 8)."""
        return self.layer(x)  # type: ignore[no-any-return]


def _plain(module: Module) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def _train_on_constant_gradients(rank: Rank, case: Case) -> tuple[Tensor, Tensor]:
    """The weights before and after training on the same batch again and again, with a loss that is
    linear in them.
    """
    fabric, module = rank.fabric(), case.network(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    before = _first_weight(module)
    draw = torch.Generator().manual_seed(5)
    data = torch.randn(
        GLOBAL_BATCH_SIZE, NUM_FEATURES + _NUM_OUTPUTS, generator=draw, dtype=torch.float64
    )
    parts = data.to(case.dtype).chunk(fabric.strategy.data_parallel_size)
    inputs, slopes = (
        parts[fabric.strategy.data_parallel_rank]
        .to(fabric.device)
        .split([NUM_FEATURES, _NUM_OUTPUTS], 1)
    )
    for _ in range(_NUM_STEPS):
        fabric.backward((model(inputs) * slopes).mean())
        optimizer.step()
        optimizer.zero_grad()
    fabric.strategy.synchronize_model()
    after = _first_weight(module)
    fabric.teardown()
    return before, after


def _train_and_synchronize(rank: Rank, case: Case, num_rounds: int) -> Tensor:
    """The first layer's weights after some steps that change them and some that don't."""
    fabric, module = rank.fabric(), case.network(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    draw = torch.Generator().manual_seed(rank.number)
    for step in range(3 + num_rounds):
        if step == 3:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        inputs = torch.randn(4, NUM_FEATURES, generator=draw, dtype=torch.float64).to(
            fabric.device, case.dtype
        )
        fabric.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    weights = _first_weight(module)
    fabric.teardown()
    return weights


def _first_weight(module: Module) -> Tensor:
    return next(module.parameters()).detach().cpu().clone()
