"""A small training of many parts that tells everything that happens in it, and ranks on which it
runs.
"""

import os
import random
import traceback
from dataclasses import dataclass, field

import numpy
import torch
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from core import Callback, Module, Trainer
from core.cluster import reserve_port

NUM_SAMPLES, NUM_FEATURES = 20, 3


class Samples(Dataset):
    """Augments with all three generators, if asked to."""

    def __init__(self, augments=False):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True)
        self.augments = augments

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        noise = random.random() + numpy.random.rand() + torch.rand(()) if self.augments else 0.0
        return self.inputs[index] + noise, self.targets[index]


class Net(Module):
    """Dropout, batch normalization, and something logged in every way."""

    def __init__(self, optimizers, norm=nn.BatchNorm1d):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(NUM_FEATURES, 4), norm(4), nn.Dropout(0.4), nn.Linear(4, 1)
        )
        self.optimizers_of = optimizers
        self.events = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("largest", batch[0].max(), on_step=False, on_epoch=True, reduce_fx="max")
        if self.current_epoch == 0 and batch_idx == 0:
            self.log("seen_once", 3.0, on_step=False, on_epoch=True)
        self.events.append(("batch", self.current_epoch, batch_idx, loss.item()))
        return loss

    def validation_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1]) * torch.rand(())
        self.log("val_loss", loss)
        self.events.append(("validation", self.current_epoch, batch_idx, loss.item()))

    def configure_optimizers(self):
        return self.optimizers_of(self.parameters())


def adamw_by_step(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    return [optimizer], [
        {
            "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40),
            "interval": "step",
        },
    ]


def sgd_by_epoch(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def on_plateau(monitor, **options):
    def configure(parameters):
        optimizer = torch.optim.AdamW(parameters, lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.3, threshold=0.9
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": monitor, **options},
        }

    return configure


def on_plateau_by_step(parameters):
    configured = on_plateau("train_loss_step")(parameters)
    configured["lr_scheduler"] |= {"interval": "step", "frequency": 2}
    return configured


@dataclass
class Case:
    """One way of training."""

    optimizers: object = adamw_by_step
    loader: dict = field(default_factory=dict)
    trainer: dict = field(default_factory=dict)
    validates: bool = False
    augments: bool = False
    net: type = Net

    def loaders(self, num_ranks=1):
        options = {"batch_size": 4 // num_ranks, "shuffle": True, **self.loader}
        if options.pop("user_generator", False):
            options["generator"] = torch.Generator().manual_seed(3)
        if options.pop("weighted", False):
            options |= {
                "shuffle": False,
                "sampler": WeightedRandomSampler([1.0, 3.0] * (NUM_SAMPLES // 2), NUM_SAMPLES),
            }
        train = DataLoader(Samples(self.augments), **options)
        return (train, DataLoader(Samples(), batch_size=7)) if self.validates else (train,)


class Listener(Callback):
    """Keeps a state, and tells of every epoch's values."""

    runs_last = True

    def __init__(self):
        self.count = 0

    def on_train_start(self, trainer, module):
        self.began_after = trainer.progress.total_batches

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.count += 1

    def on_train_epoch_end(self, trainer, module):
        values = {name: value.item() for name, value in trainer.callback_metrics.items()}
        rates = [
            group["lr"]
            for optimizer in trainer.strategy.optimizers
            for group in optimizer.param_groups
        ]
        module.events.append(("epoch", trainer.current_epoch, self.count, values, rates))


class SaveAlways(Callback):
    """Asks for a checkpoint in every hook that comes to mind."""

    runs_last = True

    def __init__(self, folder):
        self.folder = folder

    def _save(self, trainer, what):
        trainer.save_checkpoint(
            os.path.join(self.folder, f"{trainer.progress.total_batches:03}-{what}.ckpt")
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self._save(trainer, "batch")

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self._save(trainer, "validation")

    def on_train_epoch_end(self, trainer, module):
        self._save(trainer, "epoch")


def train(case, *callbacks, num_ranks=1, ckpt_path=None, seed=1, returns_trainer=False, **options):
    """Run two epochs; returns (events, weights, batches that were done before), or (events,
    trainer).
    """
    random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
    strategy = {"strategy": "ddp"} if num_ranks > 1 else {}
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "plugins": "torch",
        "limit_val_batches": None if case.validates else 0,
    }
    chosen = {"max_epochs": 2, **strategy, **quiet, **case.trainer, **options}
    listener = Listener()
    trainer = Trainer(
        accelerator="cpu", devices=num_ranks, callbacks=[listener, *callbacks], **chosen
    )
    # Each rank has batch statistics of its own, and a checkpoint those of rank 0.
    module = case.net(case.optimizers, **({"norm": nn.LayerNorm} if num_ranks > 1 else {}))
    trainer.fit(module, *case.loaders(num_ranks), ckpt_path=ckpt_path)
    if returns_trainer:
        return module.events, trainer
    state = module.state_dict()
    weights = {
        name: (own.full_tensor() if hasattr(own, "full_tensor") else own).tolist()
        for name, own in state.items()
    }
    return module.events, weights, listener.began_after


def count_batches(events):
    return sum(event[0] == "batch" for event in events)


def on_ranks(num_ranks, function, *args):
    """`function(*args)` in as many processes, as torchrun starts them; what it returns on each."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    port = reserve_port(results)
    processes = [
        context.Process(target=_work, args=(results, rank, num_ranks, port, function, args))
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    answers = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    for rank in range(num_ranks):
        assert not isinstance(answers[rank], str), "\n".join(map(str, answers.values()))
    return [answers[rank] for rank in range(num_ranks)]


def _work(results, rank, num_ranks, port, function, args):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        answer = function(*args)
    except BaseException:
        answer = traceback.format_exc()
    results.put((rank, answer))
