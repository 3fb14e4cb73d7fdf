"""A program for Lightning, unchanged: trains, saves and goes on. Its arguments: a folder, and
epochs.
"""

import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self, width=2, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        points, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(points), targets)
        self.log("loss", loss, enable_graph=False)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("weight", self.layer.weight.sum(), reduce_fx=torch.mean)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = 5


def train(folder, epochs, ckpt_path=None, shuffle=False, max_steps=-1):
    pl.seed_everything(3)
    data = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    net = Net(lr=0.05)
    best = ModelCheckpoint(folder, "best", "loss")
    trainer = pl.Trainer(
        max_epochs=epochs,
        max_steps=max_steps,
        accelerator="cpu",
        logger=False,
        callbacks=[best],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, DataLoader(data, batch_size=4, shuffle=shuffle), ckpt_path=ckpt_path)
    return trainer, net


if __name__ == "__main__":
    trainer, net = train(sys.argv[1], int(sys.argv[2]))
    trainer.save_checkpoint(f"{sys.argv[1]}/last.ckpt")
    print(net.layer.weight.tolist())
