"""Samples with different numbers of items, a module that learns from them, and what one device
makes of all.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from core import Module

NUM_SAMPLES, MOST_ITEMS = 22, 5


class Samples(Dataset):
    """Items of 4 numbers, and a mask of those that count. Some samples have none."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.items = torch.randn(
            NUM_SAMPLES, MOST_ITEMS, 4, generator=generator, dtype=torch.float64
        )
        counts = torch.randint(0, MOST_ITEMS + 1, (NUM_SAMPLES,), generator=generator)
        self.masks = torch.arange(MOST_ITEMS) < counts.unsqueeze(1)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.items[index], self.masks[index]


class Net(Module):
    """Learns from the mean over items, and logs it."""

    def __init__(self, weigh=lambda num_items: num_items, optimizer=torch.optim.Adam):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1, dtype=torch.float64)
        self.weigh, self.optimizer = weigh, optimizer
        self.means = []

    def mean_of(self, batch):
        """The mean, NaN where there are no items, and their number."""
        items, mask = batch
        values = self.layer(items).squeeze(-1)[mask].square()
        return nn.functional.mse_loss(values, torch.ones_like(values)), mask.sum()

    def training_step(self, batch, batch_idx):
        loss, num_items = self.mean_of(batch)
        self.log("mean", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "weight": self.weigh(num_items)}

    def on_train_epoch_end(self):
        self.means.append(float(self.trainer.callback_metrics["mean"]))

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=0.05)


def weights_of(module):
    return torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()


def by_hand(window_size, num_epochs=2, **options):
    """A loop over whole windows on one device: weights, and the mean over the items of each
    epoch.
    """
    module = Net(**options)
    optimizer, means = module.configure_optimizers(), []
    for _ in range(num_epochs):
        total = count = 0
        for batch in DataLoader(Samples(), batch_size=window_size):
            loss, num_items = module.mean_of(batch)
            if not num_items:
                continue
            total, count = total + loss.item() * num_items.item(), count + num_items.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        means.append(total / count)
    return weights_of(module), means
