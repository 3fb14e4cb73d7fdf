"""A tiny module that writes down which samples each rank sees, on disk: workers are other
processes.
"""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Module
from core_testing import in_one_process
from support.small_nets import quiet_trainer


class Recorder(Module):
    """Batches hold the numbers of their samples; `seen(kind)` tells them, for each rank its batches
    in order.
    """

    def __init__(self, root):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.root = root

    def note(self, kind, value):
        path = self.root / f"{kind}-{self.global_rank}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")

    def training_step(self, batch, batch_idx):
        self.note("train", numbers(batch))
        return self.layer(first(batch).float()[:, None]).mean()

    def test_step(self, batch, batch_idx):
        self.note("test", numbers(batch))

    def predict_step(self, batch):
        return first(batch) * 10

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validating(Recorder):
    """Logs the `total` of all numbers too."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.note("validation", numbers(batch))
        self.log("total", first(batch).float().sum(), reduce_fx="sum")


def seen(root, kind="train", rank=0):
    path = root / f"{kind}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def forget(root):
    for path in root.glob("*.jsonl"):
        path.unlink()


def numbers(batch):
    """The same structure, with lists in place of tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: numbers(item) for key, item in batch.items()}
    return [numbers(item) for item in batch] if isinstance(batch, list | tuple) else batch


def first(batch):
    while not isinstance(batch, torch.Tensor):
        batch = next(
            part
            for part in (batch.values() if isinstance(batch, dict) else batch)
            if part is not None
        )
    return batch


class Numbers(torch.utils.data.Dataset):
    """Samples `start`, `start` + 1, ..."""

    def __init__(self, num_samples, start=0):
        self.num_samples, self.start = num_samples, start

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return self.start + index


def loader(num_samples=6, batch_size=2, start=0, **options):
    return DataLoader(Numbers(num_samples, start), batch_size=batch_size, **options)


class Stream(torch.utils.data.IterableDataset):
    """The same samples, of a length that it doesn't tell."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __iter__(self):
        return iter(range(self.num_samples))


def stream(num_samples=6, batch_size=2):
    return DataLoader(Stream(num_samples), batch_size=batch_size)


def make_trainer(root, **options):
    """One device, quiet, one epoch."""
    return quiet_trainer(**{"devices": 1, "max_epochs": 1, "default_root_dir": root, **options})


def fit(root, data, *, ckpt_path=None, **options):
    """Of a Recorder."""
    trainer = make_trainer(root, **options)
    trainer.fit(Recorder(root), data, ckpt_path=ckpt_path)
    return trainer


def make_parallel_trainer(root, **options):
    """Two processes."""
    return make_trainer(root, **{"strategy": "ddp_fork", "devices": 2, **options})


class SaveAt(Callback):
    """Saves to `path` after so many batches."""

    def __init__(self, path, batch):
        self.path, self.batch = path, batch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.progress.total_batches == self.batch:
            trainer.save_checkpoint(self.path)


def on_two(root, run, **options):
    """`run(trainer)` on two ranks, which are threads of this process."""
    return in_one_process(
        lambda: run(make_trainer(root, **{"strategy": "ddp", "devices": 2, **options}))
    )


def flat(batches):
    """All numbers in a nested list, in order."""
    if isinstance(batches, dict):
        batches = list(batches.values())
    return (
        [number for item in batches for number in flat(item)]
        if isinstance(batches, list)
        else [batches]
    )
