"""Callbacks on ranks that see other metrics and other clocks. Imported by workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from core import Trainer
from support.tiny import Tiny


class Torn(Tiny):
    """Rank 0's `val_loss` gets worse after the second epoch; rank 1's never does, and it has no `x`."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        rank, epoch = self.global_rank, self.current_epoch
        value = [3.0, 1.0, 2.0, 2.5, 4.0][epoch] if rank == 0 else -float(epoch)
        self.log("val_loss", value, sync_dist=False)
        if rank == 0:
            self.log("x", value, sync_dist=False)

    def on_train_end(self) -> None:
        steps = self.trainer.strategy.gather_objects((self.trainer.current_epoch, self.trainer.global_step))
        if self.global_rank == 0:
            Path(os.environ["RANKS_OUT"]).write_text(repr(steps))


class Slowed(Tiny):
    """A scheduler by step, on a value that gets no better on rank 0, and better on rank 1."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("own", -float(batch_idx * self.global_rank))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "monitor": "own"},
        }

    def on_train_end(self) -> None:
        self.last_rate = self.optimizers().param_groups[0]["lr"]


class Normalized(Tiny):
    def __init__(self, has_equal_statistics: bool) -> None:
        super().__init__()
        self.has_equal_statistics = has_equal_statistics
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(x))

    def compared(self) -> torch.Tensor:
        statistics = [self.norm.running_mean, self.norm.running_var] if self.has_equal_statistics else []
        return torch.cat([self.layer.weight.detach().flatten(), *statistics])


def make_trainer(root: Any, *callbacks: Any, strategy: str = "ddp_fork", **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=root,
        callbacks=list(callbacks),
        **options,
    )
