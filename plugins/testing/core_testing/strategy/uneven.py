"""Numbers of samples that ranks can't share alike: each sample counts once, and like the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import Capability
from core_testing.cases import ADAMW, Case
from core_testing.marks import needs, of_several, of_trainer
from core_testing.mixture import mixture_of
from core_testing.strategy.base import StrategySuite
from core_testing.trainer_names import Module
from core_testing.training import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core_testing.ranks import Rank

_NUM_FEATURES, _NUM_EPOCHS = 6, 2
_Trained = tuple[dict[str, Tensor], list[float]]


class Counting(Module):
    """Counts samples wherever something adds up."""

    tensor_parallel_plan: Mapping[str, str] = {
        "first": "colwise_gather_output",
        "last": "rowwise_split_input",
    }

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.case = case
        self.first, self.last = nn.Linear(_NUM_FEATURES, 8), nn.Linear(8, 1)
        self.mixture = mixture_of(case)
        self.to(case.dtype)
        self.sums: list[float] = []
        self.weights: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 6) to (batch, 1)."""
        hidden = self.first(x)
        if self.mixture is not None:
            hidden = self.mixture(hidden)
        return self.last(torch.tanh(hidden))  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """The parts of `forward`, in order."""
        return [self.first, torch.tanh, self.last]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean error of the batch."""
        self.log("trained", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="sum")
        return functional.mse_loss(self(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        """Note the sum of the epoch."""
        self.sums.append(float(self.trainer.callback_metrics["trained"]))

    def on_train_end(self) -> None:
        """Note the weights."""
        strategy = self.trainer.strategy
        state = strategy.get_module_state_dict(self)
        self.weights = {name: whole(value, strategy) for name, value in state.items()}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count, after a forward."""
        self(batch[0])
        self.log("tested", float(len(batch[0])), reduce_fx="sum")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """The outputs, shape (batch, 1)."""
        return self(batch[0])  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        """The optimizer of the case."""
        return self.case.optimizer(self)


class UnevenTests(StrategySuite):
    """Data of which some ranks have fewer samples than others in a step, or none."""

    @needs(Capability.WEIGHTED_LOSSES | Capability.COLLECTIVES)
    @pytest.mark.parametrize("window", [1, 3])
    @pytest.mark.parametrize("batch_size", [1, 2])
    @of_several
    @of_trainer
    def test_each_sample_counts_once(self, batch_size: int, window: int) -> None:
        """In a last step with one sample for all ranks, the others join with weight 0: weights are
        one device's.
        """
        case = self.adapted(Case("uneven", optimizer=ADAMW))
        num_samples = 4 * batch_size * self.shares + 1
        weights, sums = self.run(_train, case, num_samples, batch_size, window)[0]
        expected, _ = self.one_device.run(
            _train, case, num_samples, batch_size * self.shares, window
        )[0]
        self.assert_weights_like_one_device(weights, expected, self.tolerance)
        assert sums == [num_samples] * _NUM_EPOCHS

    @needs(Capability.COLLECTIVES)
    @of_several
    @of_trainer
    def test_an_odd_evaluation_ends(self) -> None:
        """With one sample left for all ranks, those that have none don't leave the others alone,
        and count nothing.
        """
        num_samples = 2 * self.shares + 1
        found = self.run(_evaluate, self.adapted(Case("odd")), num_samples)
        assert {tested for tested, _ in found} == {num_samples}
        assert found[0][1] == num_samples


def _loader(case: Case, num_samples: int, batch_size: int) -> DataLoader[Any]:
    shape = (
        (num_samples, _NUM_FEATURES)
        if case.length is None
        else (num_samples, case.length, _NUM_FEATURES)
    )
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    samples = inputs.to(case.dtype)
    return DataLoader(
        TensorDataset(samples, samples.sum(-1, keepdim=True).sin()), batch_size=batch_size
    )


def _train(rank: Rank, case: Case, num_samples: int, batch_size: int, window: int) -> _Trained:
    module = Counting(case)
    trainer = rank.trainer(
        max_epochs=_NUM_EPOCHS, accumulate_grad_batches=window, limit_val_batches=0
    )
    trainer.fit(module, _loader(case, num_samples, batch_size))
    return module.weights, module.sums


def _evaluate(rank: Rank, case: Case, num_samples: int) -> tuple[float, int]:
    loader = _loader(case, num_samples, 1)
    (metrics,) = rank.trainer().test(Counting(case), loader)
    # anew, as a stage may leave it in other formats
    predicted: Any = rank.trainer().predict(Counting(case), loader)
    return metrics["tested"], sum(len(batch) for batch in predicted)
