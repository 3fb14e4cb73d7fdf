"""The number of an epoch comes to data sets: within others, and in workers that persist, which keep
a copy of them.
"""

import os
from multiprocessing import active_children

import pytest
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
)

from core import Fabric, Trainer
from core.data import set_epoch, shard_loader
from core_training.stage_data.combined import CombinedLoader
from core_training.stage_data.sample_seeds import seed_samples
from support.small_nets import QUIET, Net


class Epochs(Dataset):
    """Each sample is the epoch, and the process that loads it."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([self.epoch, os.getpid()])


class Slots(Epochs):
    __slots__ = ("epoch",)

    def __init__(self):
        self.epoch = 0


class Stream(IterableDataset, Epochs):
    def __iter__(self):
        return (self[index] for index in range(4))


class Augmented(Dataset):
    """A user's own."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        return self._dataset[index]


MAKERS = {
    "map-style": Epochs,
    "slots": Slots,
    "stream": Stream,
    "subset": lambda: Subset(Epochs(), range(4)),
    "concatenated": lambda: ConcatDataset([Subset(Epochs(), [0, 1]), Augmented(Epochs())]),
    "chained": lambda: ChainDataset([Stream(), Stream()]),
    "stacked": lambda: StackDataset(one=Epochs(), other=Subset(Epochs(), range(4))),
}


WORKER = {"num_workers": 1, "persistent_workers": True}


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, {}) for name in MAKERS), ("concatenated", WORKER), ("chained", WORKER)],
)
def test_data_sets_and_those_within_are_told(name, workers):
    def found(batches):
        """The epochs that came, and the processes that they came from."""
        batches = [
            each
            for batch in batches
            for each in (batch.values() if isinstance(batch, dict) else [batch])
        ]
        epochs, processes = torch.cat(batches).T.tolist()
        return set(epochs), set(processes)

    loader = shard_loader(
        DataLoader(MAKERS[name](), batch_size=2, **workers), rank=0, size=1, seed=7
    )
    processes = set()
    for epoch in (0, 3, 4):
        set_epoch(loader, epoch)
        next(iter(loader))  # an iteration that is left early
        epochs, others = found(loader)
        assert epochs == {epoch}
        processes |= others
    assert (processes == {os.getpid()}) == (not workers)


def test_a_data_set_is_told_once_and_tells_those_within_itself():
    class Counts(Augmented):
        num_calls = 0

        def set_epoch(self, epoch):
            self.num_calls += 1

    inner = Counts(Epochs())
    both = ConcatDataset([Subset(inner, [0]), Subset(inner, [1])])
    loader = shard_loader(DataLoader(both, batch_size=2), rank=0, size=1, seed=7)
    set_epoch(seed_samples(loader), 2)
    assert (inner.num_calls, inner._dataset.epoch) == (1, 0)


def test_a_trainer_tells_several_loaders_and_goes_on_with_it(tmp_path):
    class Keeps(Net):
        def __init__(self):
            super().__init__()
            self.epochs = []

        def training_step(self, batch, batch_idx):
            self.epochs.append([int(part[0, 0]) for part in batch])
            return super().training_step(torch.ones(2, 4), batch_idx)

    def persistent(dataset):
        return DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)

    options = {**QUIET, "enable_checkpointing": False}
    loaders = CombinedLoader([persistent(Subset(Epochs(), range(4))), persistent(Stream())])
    module, trainer, others = Keeps(), Trainer(max_epochs=2, **options), active_children()
    trainer.fit(module, loaders)
    assert active_children() == others, (
        "no worker is left to garbage collection, which waits for it"
    )
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    Trainer(max_epochs=4, **options).fit(module, loaders, ckpt_path=tmp_path / "end.ckpt")
    assert module.epochs == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_fabric_tells_each_iteration():
    """In this process: `Trainer` has workers."""
    fabric = Fabric(accelerator="cpu")
    loaders = fabric.setup_dataloaders(DataLoader(Subset(Epochs(), range(4))), DataLoader(Stream()))
    epochs = [[{batch[0, 0].item() for batch in loader} for loader in loaders] for _ in range(3)]
    assert epochs == [
        [{0}] * 2,
        [{1}] * 2,
        [{2}] * 2,
    ]
