"""Batches on their way to the device before the step asks for them."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from core_xla.device_loader import DeviceLoader, num_ahead_of


def test_batches_are_placed_ahead_and_come_in_order():
    placed = []

    def place(batch):
        placed.append(batch)
        return -batch

    batches = iter(DeviceLoader(range(1, 6), place, num_ahead=2))
    assert next(batches) == -1
    assert placed == [1, 2, 3]
    assert list(batches) == [-2, -3, -4, -5]
    assert len(DeviceLoader(range(1, 6), place, 2)) == 5


def test_only_loaders_with_workers_are_asked_ahead():
    """One without draws random numbers in this process, one with a position would tell a later
    one.
    """
    data = TensorDataset(torch.zeros(4))
    assert num_ahead_of(DataLoader(data, num_workers=1), 2) == 2
    assert num_ahead_of(DataLoader(data), 2) == 0

    class Resumable(DataLoader):
        def state_dict(self):
            return {}

    assert num_ahead_of(Resumable(data, num_workers=1), 2) == 0
