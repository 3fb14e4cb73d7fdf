"""A run that is killed within an epoch and started again: are its weights, in the end, those of the
undisturbed run?

Two epochs of 20 shuffled batches, Adam, with dropout and without; the run saves after step 25 and
is killed after step 27. It is then started again as the same script would be, seed and all, in a
new process, by the way that the library's own pages give.
"""

import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import accelerate
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint as LightningCheckpoint
from others.processes import Failure, forked
from rich.table import Table
from step_overhead import OFF
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import core
from core.callbacks import ModelCheckpoint

SAVED_AT, KILLED_AT, NUM_EPOCHS = 25, 27, 2


def data(loader: Callable[..., DataLoader] = DataLoader) -> DataLoader:
    inputs = torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
    return loader(
        TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=4, shuffle=True
    )


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Dropout(float(os.environ["DROPOUT"])), nn.Linear(32, 1)
    )


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def weights_of(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def kill_at(step: int) -> None:
    if step == KILLED_AT:
        os.kill(os.getpid(), signal.SIGKILL)


class Killed:
    """A callback of either library."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        kill_at(trainer.global_step)


def of_trainer(library, checkpoints, make_loader, folder: Path, killed: bool) -> list[float]:
    """By a Trainer of either library, with `ckpt_path="last"`."""

    class Net(library.LightningModule if library is lightning else library.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def training_step(self, batch, batch_idx):
            return loss_of(self.layers, batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    library.seed_everything(0)
    killer = type("Killer", (Killed, library.Callback), {})()
    callbacks = [
        checkpoints(dirpath=folder, every_n_train_steps=SAVED_AT, save_last=True),
        *([killer] * killed),
    ]
    options = {name: value for name, value in OFF.items() if name != "enable_checkpointing"}
    trainer = library.Trainer(
        accelerator="cpu", max_epochs=NUM_EPOCHS, callbacks=callbacks, **options
    )
    trainer.fit(net := Net(), make_loader(), ckpt_path="last" if any(folder.iterdir()) else None)
    return weights_of(net)


def of_fabric(folder: Path, killed: bool) -> list[float]:
    fabric = core.Fabric(accelerator="cpu")
    fabric.seed_everything(0)
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    loader, step = fabric.setup_dataloaders(data()), 0
    state = {
        "model": model,
        "optimizer": optimizer,
        "loader": loader,
        "step": step,
        "draws": torch.get_rng_state(),
    }
    if (folder / "last.ckpt").exists():
        fabric.load(folder / "last.ckpt", state)
        step = state["step"]
    draws = state["draws"]
    while step < NUM_EPOCHS * 20:
        for batch in loader:
            torch.set_rng_state(draws)
            fabric.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            draws, step = torch.get_rng_state(), step + 1
            if step == SAVED_AT:
                fabric.save(folder / "last.ckpt", {**state, "step": step, "draws": draws})
            if killed:
                kill_at(step)
    return weights_of(model)


def of_accelerate(
    configuration: dict[str, bool], set_epoch: bool, folder: Path, killed: bool
) -> list[float]:
    """As in Accelerate's example `by_feature/checkpointing.py`."""
    options = accelerate.DataLoaderConfiguration(**configuration)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)
    accelerate.utils.set_seed(0)
    model = network()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.Adam(model.parameters(), lr=0.01), data()
    )
    step = begun = 0
    if resumes := (folder / "step").exists():
        accelerator.load_state(str(folder / "step"))
        begun = SAVED_AT // len(loader)
        step = SAVED_AT
    for epoch in range(begun, NUM_EPOCHS):
        if set_epoch:
            loader.set_epoch(epoch)
        active = loader
        if resumes and epoch == begun and not configuration.get("use_stateful_dataloader"):
            active = accelerator.skip_first_batches(loader, SAVED_AT % len(loader))
        for batch in active:
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == SAVED_AT:
                accelerator.save_state(str(folder / "step"))
            if killed:
                kill_at(step)
    return weights_of(model)


def of_hand(folder: Path, killed: bool) -> list[float]:
    """As in torch's tutorial on general checkpoints: the model, the optimizer and the epoch."""
    torch.manual_seed(0)
    model = network()
    optimizer, loader = torch.optim.Adam(model.parameters(), lr=0.01), data()
    path, begun, step = folder / "last.pt", 0, 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"]
    for epoch in range(begun, NUM_EPOCHS):
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == SAVED_AT:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "epoch": epoch,
                    },
                    path,
                )
            if killed:
                kill_at(step)
    return weights_of(model)


WAYS: dict[str, Callable[[Path, bool], list[float]]] = {
    'core, Trainer, ckpt_path="last"': partial(of_trainer, core, ModelCheckpoint, data),
    "core, Fabric, with its loader and torch's generator": of_fabric,
    'Lightning, Trainer, ckpt_path="last"': partial(
        of_trainer, lightning, LightningCheckpoint, data
    ),
    "the same, StatefulDataLoader": partial(
        of_trainer, lightning, LightningCheckpoint, partial(data, StatefulDataLoader)
    ),
    "Accelerate, skip_first_batches": partial(of_accelerate, {}, False),
    "the same, use_seedable_sampler, set_epoch": partial(
        of_accelerate, {"use_seedable_sampler": True}, True
    ),
    "Accelerate, use_stateful_dataloader": partial(
        of_accelerate, {"use_stateful_dataloader": True}, False
    ),
    "the same, use_seedable_sampler, set_epoch ": partial(
        of_accelerate, {"use_stateful_dataloader": True, "use_seedable_sampler": True}, True
    ),
    "by hand, as torch's tutorial": of_hand,
}


def difference(way: Callable[[Path, bool], list[float]]) -> str:
    """The largest difference of a weight from that of the run that was never killed, or from what
    it is twice.
    """
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root) / name for name in ("undisturbed", "again", "killed")]
        for folder in folders:
            folder.mkdir()
        undisturbed, again = (forked(partial(way, folder, False))[0] for folder in folders[:2])
        (died,) = forked(partial(way, folders[2], True))
        (resumed,) = forked(partial(way, folders[2], False))
    for result in (undisturbed, again, resumed):
        if isinstance(result, Failure):
            return str(result)
    if died != Failure("died"):
        return f"not killed: {died}"
    if undisturbed != again:
        return "differs from run to run"
    return f"{max(abs(one - other) for one, other in zip(resumed, undisturbed, strict=True)):.2g}"


def compare_resumes() -> Table:
    table = Table(
        "killed within an epoch, and started again", "weights differ by", "without dropout"
    )
    for name, way in WAYS.items():
        cells = []
        for dropout in ("0.5", "0"):
            with patch.dict(os.environ, DROPOUT=dropout):
                cells.append(difference(way))
        table.add_row(name, *cells)
    return table
