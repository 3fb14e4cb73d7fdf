"""Losses that say what they weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import Capability, UnsupportedError
from core_testing.cases import ADAMW, Case
from core_testing.marks import needs, of_trainer, unless
from core_testing.mixture import mixture_of
from core_testing.networks import GLOBAL_BATCH_SIZE
from core_testing.ranks import one_device
from core_testing.strategy.base import StrategySuite
from core_testing.trainer_names import Module
from core_testing.training import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from core_testing.ranks import Rank

NUM_SAMPLES = 45
"""In batches of 8 the last one is short, and so is the last window of three."""
_NUM_ITEMS, _NUM_FEATURES, _NUM_EPOCHS = 4, 6, 2
_WINDOWS = (1, 3)
_STREAM_BATCH_SIZE = 2
_Found = tuple[dict[str, "Tensor"], list[float]]


class Items(Module):
    """Learns from the mean over the items of a batch, and logs it."""

    tensor_parallel_plan: Mapping[str, str] = {
        "first": "colwise_gather_output",
        "last": "rowwise_split_input",
    }

    def __init__(self, case: Case, window: int = 1) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.case, self.window = case, window
        self.first, self.last = nn.Linear(_NUM_FEATURES, 8), nn.Linear(8, 1)
        self.mixture = mixture_of(case)
        self.to(case.dtype)
        self.means: list[float] = []
        self.weights: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Shape (items, 6) to (items, 1), or (batch, items, 6) to (batch, items, 1)."""
        hidden = self.first(x)
        if self.mixture is not None:
            hidden = self.mixture(hidden)
        return self.last(torch.tanh(hidden))  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """The parts of `forward`, in order."""
        return [self.first, torch.tanh, self.last]

    def weighted(self, batch: Any) -> dict[str, Tensor]:
        """The mean over items, and their number."""
        # The items of a sample are its sequence, where samples are sequences.
        items, mask = (part.flatten(0, 1) if self.case.length is None else part for part in batch)
        num_items = mask.sum()
        loss = ((self(items) - 1).square() * mask.unsqueeze(-1)).sum() / num_items.clamp(min=1)
        return {"loss": loss, "weight": num_items}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, its weight, and a value to be averaged by it."""
        output = self.weighted(batch)
        self.log("mean", output["loss"], on_step=False, on_epoch=True)
        return output

    def on_train_epoch_end(self) -> None:
        """Note the mean of the epoch."""
        self.means.append(float(self.trainer.callback_metrics["mean"]))

    def on_train_end(self) -> None:
        """Note the weights."""
        strategy = self.trainer.strategy
        self.weights = _whole(strategy.get_module_state_dict(self), strategy)

    def configure_optimizers(self) -> Any:
        """The optimizer of the case."""
        return self.case.optimizer(self)


class ItemsByHand(Items):
    """The same in manual optimization."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Backward, and at the end of a window the optimizer's step."""
        output, optimizer = super().training_step(batch, batch_idx), self.optimizers()
        self.manual_backward(output["loss"], weight=output["weight"])
        if (batch_idx + 1) % self.window == 0 or batch_idx + 1 == self.trainer.num_training_batches:
            optimizer.step()
            optimizer.zero_grad()
        return {**output, "loss": output["loss"].detach()}


class Stream(IterableDataset[Any]):
    """The samples of this rank's share of the data, of which each share has more than the one
    before.
    """

    def __init__(self, case: Case) -> None:
        self.samples = make_items(case)
        self.strategy: Any = None

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[number] for number in _part_of(self.strategy.data_parallel_rank))


def _part_of(share: int) -> range:
    """Numbers of 3, 8, 13 and 18 samples."""
    start = share * (5 * share + 1) // 2
    return range(start, start + 3 + 5 * share)


class WeightTests(StrategySuite):
    """The gradient of a step, and logged means, are those of all items, as one device has them."""

    @needs(Capability.WEIGHTED_LOSSES)
    @pytest.mark.parametrize("window", _WINDOWS)
    @pytest.mark.parametrize("loop", ["trainer", "fabric", "manual"])
    @of_trainer
    def test_losses_are_weighted(self, loop: str, window: int) -> None:
        """Batches, ranks and samples have different numbers of items, some have none; the last
        window is short.
        """
        if loop == "manual" and Capability.MANUAL_OPTIMIZATION not in self.declared():
            pytest.skip(f"{self.alias} doesn't declare MANUAL_OPTIMIZATION")
        case = self.adapted(Case("weighted", optimizer=ADAMW))
        weights, means = self.run(_LOOPS[loop], case, window)[0]
        windows = _whole_windows(GLOBAL_BATCH_SIZE // self.shares * self.shares * window)
        expected, expected_means = self._on_the_cpu(case, windows)
        self.assert_weights_like_one_device(weights, expected, self.tolerance)
        if loop != "fabric":
            assert means == pytest.approx(expected_means, rel=max(self.tolerance, 1e-12))

    @needs(Capability.WEIGHTED_LOSSES)
    @pytest.mark.parametrize("window", _WINDOWS)
    @of_trainer
    def test_streams_are_weighted(self, window: int) -> None:
        """Ranks read iterable data, of which each has another number of batches, until all have run
        out.
        """
        case = self.adapted(Case("weighted", optimizer=ADAMW))
        weights, means = self.run(_by_streams, case, window)[0]
        windows = _windows_of_streams(self.shares, _STREAM_BATCH_SIZE * window)
        expected, expected_means = self._on_the_cpu(case, windows)
        self.assert_weights_like_one_device(weights, expected, self.tolerance)
        assert means == pytest.approx(expected_means, rel=max(self.tolerance, 1e-12))

    def _on_the_cpu(self, case: Case, windows: tuple[tuple[int, ...], ...]) -> _Found:
        # Not in `one_device`: a process has to come to its first backward on the device that it is
        # there for.
        found: _Found = one_device("cpu", self.keeps_ranks).run(_on_one_device, case, windows)[0]
        return found

    @unless(Capability.WEIGHTED_LOSSES)
    @of_trainer
    def test_a_weight_is_refused(self) -> None:
        """A weight that can't count is refused by name, before the parameters are updated."""
        for found in self.run(_refusal, self.adapted(Case("refused", optimizer=ADAMW))):
            assert "weigh" in found, f"expected an UnsupportedError that says so, and got: {found}"


def make_items(case: Case) -> TensorDataset:
    """Items, shape (45, 4, 6), and a mask of those that count, shape (45, 4). The second batch has
    none.
    """
    generator = torch.Generator().manual_seed(7)
    items = torch.randn(
        NUM_SAMPLES, _NUM_ITEMS, _NUM_FEATURES, generator=generator, dtype=torch.float64
    )
    counts = torch.randint(0, _NUM_ITEMS + 1, (NUM_SAMPLES,), generator=generator)
    counts[GLOBAL_BATCH_SIZE : 2 * GLOBAL_BATCH_SIZE] = 0
    return TensorDataset(items.to(case.dtype), torch.arange(_NUM_ITEMS) < counts.unsqueeze(1))


def _loader(rank: Rank, case: Case) -> DataLoader[Any]:
    return DataLoader(
        make_items(case), batch_size=GLOBAL_BATCH_SIZE // rank.backend.data_parallel_size
    )


def _by_trainer(
    rank: Rank, case: Case, window: int, kind: type[Items] = Items, **options: Any
) -> _Found:
    module = kind(case, window)
    trainer = rank.trainer(max_epochs=_NUM_EPOCHS, **{"accumulate_grad_batches": window, **options})
    trainer.fit(module, _loader(rank, case))
    return module.weights, module.means


def _manually(rank: Rank, case: Case, window: int) -> _Found:
    return _by_trainer(rank, case, window, ItemsByHand, accumulate_grad_batches=1)


def _by_fabric(rank: Rank, case: Case, window: int) -> _Found:
    fabric, module = rank.fabric(), Items(case)
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    model.mark_forward_method("weighted")
    loader = fabric.setup_dataloaders(_loader(rank, case))
    for _ in range(_NUM_EPOCHS):
        for batch_idx, batch in enumerate(loader):
            ends_window = (batch_idx + 1) % window == 0 or batch_idx + 1 == len(loader)
            with fabric.no_backward_sync(model, enabled=not ends_window):
                output = model.weighted(batch)
                fabric.backward(output["loss"], weight=output["weight"])
            if ends_window:
                optimizer.step()
                optimizer.zero_grad()
    weights = _whole(fabric.strategy.get_module_state_dict(module), fabric.strategy)
    fabric.teardown()
    return weights, []


_LOOPS = {"trainer": _by_trainer, "fabric": _by_fabric, "manual": _manually}


def _whole(state: Mapping[str, Any], strategy: Any) -> dict[str, Tensor]:
    return {name: whole(value, strategy) for name, value in state.items()}


def _refusal(rank: Rank, case: Case) -> str:
    whole_batches = TensorDataset(
        *make_items(case)[: NUM_SAMPLES // GLOBAL_BATCH_SIZE * GLOBAL_BATCH_SIZE]
    )
    loader = DataLoader(
        whole_batches, batch_size=GLOBAL_BATCH_SIZE // rank.backend.data_parallel_size
    )
    try:
        rank.trainer(max_epochs=1).fit(Items(case), loader)
    except UnsupportedError as error:
        return str(error)
    return "nothing"


def _by_streams(rank: Rank, case: Case, window: int) -> _Found:
    stream = Stream(case)
    module = Items(case, window)
    trainer = rank.trainer(
        max_epochs=_NUM_EPOCHS, accumulate_grad_batches=window, use_distributed_sampler=False
    )
    stream.strategy = trainer.strategy
    trainer.fit(module, DataLoader(stream, batch_size=_STREAM_BATCH_SIZE))
    return module.weights, module.means


def _whole_windows(size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(range(start, min(start + size, NUM_SAMPLES))) for start in range(0, NUM_SAMPLES, size)
    )


def _windows_of_streams(data_parallel_size: int, size: int) -> tuple[tuple[int, ...], ...]:
    parts = [_part_of(share) for share in range(data_parallel_size)]
    starts = range(0, max(map(len, parts)), size)
    return tuple(
        tuple(number for part in parts for number in part[start : start + size]) for start in starts
    )


def _on_one_device(rank: Rank, case: Case, windows: tuple[tuple[int, ...], ...]) -> _Found:
    """Weights and means of a loop on the CPU that sees all samples of a window at once, and no
    weight.
    """
    module, samples = Items(case), make_items(case).tensors
    optimizer = module.configure_optimizers()
    for _ in range(_NUM_EPOCHS):
        total = num_items = 0.0
        for window in windows:
            output = module.weighted([part[list(window)] for part in samples])
            if not output["weight"]:
                continue
            output["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            total += float(output["loss"].detach() * output["weight"])
            num_items += float(output["weight"])
        module.means.append(total / num_items)
    return {
        name: value.detach().clone() for name, value in module.state_dict().items()
    }, module.means
