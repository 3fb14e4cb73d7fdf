"""Data: every sample, once, in the order of one device."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Capability, CoreError
from core_testing.marks import of_trainer
from core_testing.strategy.base import StrategySuite
from core_testing.trainer_names import Module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_testing.ranks import Rank

_BATCH_SIZE = 4
_EVEN, _UNEVEN = 24, 23


class Collecting(Module):
    """Keeps the numbers of the samples that it sees, epoch by epoch. Its data are those numbers.

    A step that is traced once for all batches can't look at them: its hooks do that then.
    """

    expert_parallel_plan = ()  # it has no experts, wherever others must have some
    tensor_parallel_plan: Mapping[str, str] = {}  # nor layers that could be cut

    def __init__(self, *, is_traced: bool, length: int | None) -> None:
        super().__init__()
        self._is_traced, self._length = is_traced, length
        torch.manual_seed(3)
        self.layer = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        self.trained: list[list[list[int]]] = []
        self.validated: list[int] = []
        self.devices: set[torch.device] = set()

    def on_train_epoch_start(self) -> None:
        """Begin a new list."""
        self.trained.append([])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note the samples for a step that can't."""
        if self._is_traced:
            self.trained[-1].append([int(number) for number in batch])

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note the samples for a step that can't."""
        if self._is_traced:
            self.validated.extend(int(number) for number in batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Note the samples."""
        if not self._is_traced:
            self.trained[-1].append([int(number) for number in batch])
        self.devices.add(batch.device)
        numbers = batch.float().unsqueeze(1)
        if self._length is not None:
            numbers = numbers.unsqueeze(1).expand(-1, self._length, 1)
        return self.layer(numbers).square().mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Note the samples, and count them."""
        if not self._is_traced:
            self.validated.extend(int(number) for number in batch)
        self.log("num_samples", float(len(batch)), reduce_fx="sum", add_dataloader_idx=False)

    def configure_optimizers(self) -> Any:
        """One that changes nothing much."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class DataTests(StrategySuite):
    """The data of all ranks, put together again."""

    @of_trainer
    def test_every_sample_comes_once_an_epoch(self) -> None:
        """Of an even number of samples, the shares of all ranks together are each sample once, in
        every epoch.
        """
        for epoch in range(2):
            assert sorted(self._seen(self._fitted(_EVEN, False), epoch)) == list(range(_EVEN))

    @of_trainer
    def test_batches_are_those_of_one_device(self) -> None:
        """Step by step, the shares together are the batch of one device: shuffled, and differently
        in each epoch.
        """
        batches = self._merged(self._fitted(_EVEN, True))
        expected = self._merged(self.one_device.run(_fit, _EVEN, True, _BATCH_SIZE * self.shares))
        assert batches == expected
        assert batches[0] != batches[1], "both epochs have the same order"

    @of_trainer
    def test_uneven_lengths_lose_nothing(self) -> None:
        """All ranks make the same number of steps, every sample comes, and at most a few come
        twice.
        """
        found = self._fitted(_UNEVEN, False)
        assert len({len(modules["trained"][0]) for modules in found}) == 1, (
            "ranks made different numbers of steps"
        )
        seen = self._seen(found, 0)
        assert set(seen) == set(range(_UNEVEN))
        assert len(seen) < _UNEVEN + self.shares

    @of_trainer
    def test_validation_counts_every_sample_once(self) -> None:
        """Of an uneven number of samples too; and so do sums that are logged, where ranks share
        their data.
        """
        found = self.run(_validate, _UNEVEN)
        if Capability.COLLECTIVES in self.declared():
            assert {modules["logged"] for modules in found} == {float(_UNEVEN)}
        validated = chain.from_iterable(ranks["validated"] for ranks in self._one_a_share(found))
        assert sorted(validated) == list(range(_UNEVEN))

    def test_ranks_that_share_data_have_the_same(self) -> None:
        """Where several ranks get one share, and each makes other data, that is refused, or all get
        one rank's.
        """
        if self.shares >= self.num_processes:
            pytest.skip(f"{self.alias} gives each rank data of its own")
        found = self.run(_fit_on_own_data, self.length)
        assert (
            all(isinstance(one, str) for one in found)
            or len({repr(one) for one in found}) == self.shares
        ), "ranks of one share trained on different batches, without a word"

    @of_trainer
    def test_batches_are_on_the_device(self) -> None:
        """The user's step gets its batch on the rank's device, as the loader made it."""
        for modules in self._fitted(_EVEN, False):
            assert modules["devices"] == {modules["device"]}

    def _fitted(self, num_samples: int, shuffle: bool) -> list[dict[str, Any]]:
        return self.run(_fit, num_samples, shuffle, _BATCH_SIZE, self.length)

    def _one_a_share(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ranks that share their data count once."""
        return list({modules["share"]: modules for modules in found}.values())

    def _seen(self, found: list[dict[str, Any]], epoch: int) -> list[int]:
        batches = chain.from_iterable(
            modules["trained"][epoch] for modules in self._one_a_share(found)
        )
        return list(chain.from_iterable(batches))

    def _merged(self, found: list[dict[str, Any]]) -> list[list[list[int]]]:
        """The samples of all shares, for each epoch and step."""
        shares = self._one_a_share(found)
        epochs = range(len(shares[0]["trained"]))
        return [
            [
                sorted(chain.from_iterable(step))
                for step in zip(*(share["trained"][epoch] for share in shares), strict=True)
            ]
            for epoch in epochs
        ]


def _loader(num_samples: int, shuffle: bool, batch_size: int) -> DataLoader[Any]:
    return DataLoader(torch.arange(num_samples), batch_size=batch_size, shuffle=shuffle)  # type: ignore[arg-type]


def _fit_on_own_data(rank: Rank, length: int | None) -> str | list[list[list[int]]]:
    trainer = rank.trainer(max_epochs=1, limit_val_batches=0)
    module = _collecting_for(trainer, length)
    data = torch.arange(_EVEN) + _EVEN * rank.number
    try:
        trainer.fit(module, DataLoader(data, batch_size=_BATCH_SIZE))  # type: ignore[arg-type]
    except CoreError as error:
        return str(error)
    return module.trained


def _fit(
    rank: Rank, num_samples: int, shuffle: bool, batch_size: int, length: int | None = None
) -> dict[str, Any]:
    trainer = rank.trainer(max_epochs=2, limit_val_batches=0)
    module = _collecting_for(trainer, length)
    torch.manual_seed(5)
    trainer.fit(module, _loader(num_samples, shuffle, batch_size))
    return _findings(module, trainer)


def _validate(rank: Rank, num_samples: int) -> dict[str, Any]:
    trainer = rank.trainer()
    module = _collecting_for(trainer)
    (metrics,) = trainer.validate(module, _loader(num_samples, False, _BATCH_SIZE))
    return {**_findings(module, trainer), "logged": metrics["num_samples"]}


def _collecting_for(trainer: Any, length: int | None = None) -> Collecting:
    return Collecting(
        is_traced=Capability.COMPILED_STEP in trainer.strategy.capabilities, length=length
    )


def _findings(module: Collecting, trainer: Any) -> dict[str, Any]:
    strategy = trainer.strategy
    return {
        "trained": module.trained,
        "validated": module.validated,
        "devices": module.devices,
        "device": strategy.root_device,
        "share": strategy.data_parallel_rank,
    }
