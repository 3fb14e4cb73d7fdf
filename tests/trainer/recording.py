"""A tiny module that writes down which samples each rank sees, on disk: workers are other processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer
from core_testing import in_one_process


class Recorder(Module):
    """Batches hold the numbers of their samples; `seen(kind)` tells them, for each rank its batches in order."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.root = root

    def note(self, kind: str, value: Any) -> None:
        path = self.root / f"{kind}-{self.global_rank}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.note("train", numbers(batch))
        return self.layer(first(batch).float()[:, None]).mean()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.note("test", numbers(batch))

    def predict_step(self, batch: Any) -> Any:
        return first(batch) * 10

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validating(Recorder):
    """Logs the `total` of all numbers too."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.note("validation", numbers(batch))
        self.log("total", first(batch).float().sum(), reduce_fx="sum")


def seen(root: Path, kind: str = "train", rank: int = 0) -> list[Any]:
    path = root / f"{kind}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def forget(root: Path) -> None:
    for path in root.glob("*.jsonl"):
        path.unlink()


def numbers(batch: Any) -> Any:
    """The same structure, with lists in place of tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: numbers(item) for key, item in batch.items()}
    return [numbers(item) for item in batch] if isinstance(batch, list | tuple) else batch


def first(batch: Any) -> torch.Tensor:
    while not isinstance(batch, torch.Tensor):
        batch = next(part for part in (batch.values() if isinstance(batch, dict) else batch) if part is not None)
    return batch


class Numbers(torch.utils.data.Dataset):
    """Samples `start`, `start` + 1, ..."""

    def __init__(self, num_samples: int, start: int = 0) -> None:
        self.num_samples, self.start = num_samples, start

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        return self.start + index


def loader(num_samples: int = 6, batch_size: int = 2, start: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(num_samples, start), batch_size=batch_size, **options)


class Stream(torch.utils.data.IterableDataset):
    """The same samples, of a length that it doesn't tell."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Any:
        return iter(range(self.num_samples))


def stream(num_samples: int = 6, batch_size: int = 2) -> DataLoader[Any]:
    return DataLoader(Stream(num_samples), batch_size=batch_size)


def make_trainer(root: Path, **options: Any) -> Trainer:
    """One device, quiet, one epoch."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": root,
    }
    return Trainer(**{**defaults, **options})


def make_parallel_trainer(root: Path, **options: Any) -> Trainer:
    """Two processes."""
    return make_trainer(root, **{"strategy": "ddp_fork", "devices": 2, **options})


class SaveAt(Callback):
    """Saves to `path` after so many batches."""

    def __init__(self, path: Path, batch: int) -> None:
        self.path, self.batch = path, batch

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.progress.total_batches == self.batch:
            trainer.save_checkpoint(self.path)


def on_two(root: Path, run: Callable[[Trainer], Any], **options: Any) -> list[Any]:
    """`run(trainer)` on two ranks, which are threads of this process."""
    return in_one_process(lambda: run(make_trainer(root, **{"strategy": "ddp", "devices": 2, **options})))


def flat(batches: Any) -> list[Any]:
    """All numbers in a nested list, in order."""
    if isinstance(batches, dict):
        batches = list(batches.values())
    return [number for item in batches for number in flat(item)] if isinstance(batches, list) else [batches]
