"""From launch until set-up ranks draw the same, without a seed too: a split made there is one
split.
"""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from core import ConfigurationError, DataModule, Fabric, Trainer
from core_testing import in_one_process
from support.small_nets import QUIET, Net

TWO = {"accelerator": "cpu", "strategy": "ddp", "devices": 2}


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_what_ranks_draw_before_and_after_set_up():
    def seed(number):
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    def draw_around_set_up():
        """With seeds of their own; the same, but seeded since; and with one seed."""
        fabric, found = Fabric(**TWO), []
        fabric.launch()
        for seeds, since in (((5, 6), None), ((5, 6), 7), ((5, 5), None)):
            seed(seeds[fabric.global_rank])
            fabric.draw_alike()
            alike = draw(), int(np.random.permutation(5_000)[0]), random.sample(range(5_000), 1_000)
            if since is not None:
                seed(since)
            fabric.draw_apart()
            found.append((alike, draw()))
        fabric.draw_alike()
        fabric.setup(torch.nn.Linear(1, 1))
        return [*found, fabric._draw_apart]

    def drawn_after(number):
        seed(number)
        return draw()

    first, second = in_one_process(draw_around_set_up)
    for (alike, _), (other, _) in zip(first[:3], second[:3], strict=True):
        assert alike == other
        assert alike[0] == drawn_after(5)
    (_, own), (_, seeded), (_, went_on), is_apart = second
    assert [own, seeded, went_on] == [drawn_after(6), drawn_after(7), first[2][1]]
    assert [first[1][1], first[3], is_apart] == [drawn_after(7), None, None]


def test_a_trainers_hooks_draw_alike_and_its_steps_apart():
    class DrawsApart(Net):
        def training_step(self, batch, batch_idx):
            self.drawn = [draw() for _ in range(self.global_rank + 1)]
            return super().training_step(batch[0], batch_idx)

    class Splits(DataModule):
        """One rank draws alone, and later each as often as it likes."""

        def __init__(self):
            super().__init__()
            self.splits = []

        def prepare_data(self):
            draw()

        def setup(self, stage):
            self.order = random.sample(range(16), 16), np.random.permutation(16).tolist()

        def train_dataloader(self):
            train, _ = random_split(TensorDataset(torch.ones(16, 4)), [8, 8])
            self.splits.append(train.indices)
            return DataLoader(train, batch_size=2)

    def draw_in_hooks():
        module, data = DrawsApart(), Splits()
        Trainer(**QUIET | TWO, max_epochs=2, reload_dataloaders_every_n_epochs=1).fit(
            module, datamodule=data
        )
        return data.order, data.splits, module.drawn[-1]

    (order, splits, drawn), (other, others, apart) = in_one_process(draw_in_hooks)
    assert order == other
    assert splits == others
    assert splits[0] != splits[1]
    assert not {*drawn} & {*apart}


@pytest.mark.parametrize("kind", ["subset", "subset within another", "sampler"])
def test_splits_that_differ_are_refused(kind):
    """Those that were drawn before `launch`."""

    class Within(Dataset):
        def __init__(self, data):
            self.data = self.dataset = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            return self.data[index]

    makers = {
        "subset": lambda indices: DataLoader(Subset(range(4), indices)),
        "subset within another": lambda indices: DataLoader(
            Within(Subset(range(4), torch.tensor(indices)))
        ),
        "sampler": lambda indices: DataLoader(range(4), sampler=SubsetRandomSampler(indices)),
    }
    make = makers[kind]

    def set_up_splits():
        fabric = Fabric(**TWO)
        fabric.launch()
        fabric.setup_dataloaders(make([2, 3]))
        try:
            fabric.setup_dataloaders(make([fabric.global_rank]))
        except ConfigurationError as error:
            return str(error)

    none, error = in_one_process(set_up_splits)
    assert none is None
    assert (
        "fit loader's Subset or SubsetRandomSampler has other samples on rank 1 than on rank 0"
        in error
    )
    assert "Split in DataModule.setup" in error
