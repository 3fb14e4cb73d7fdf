# nequip
import lightning.pytorch as pl
import torch
from nequip.train import SimpleDDPStrategy
from torch.utils.data import DataLoader


class Energies(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, batch_idx):
        return (self.layers(batch).sum(1) - batch.square().sum((1, 2))[:, None]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


positions = torch.randn(32, 5, 3)
strategy = SimpleDDPStrategy(process_group_backend="gloo")
trainer = pl.Trainer(
    max_epochs=3, accelerator="cpu", devices=1, strategy=strategy, use_distributed_sampler=False
)
trainer.fit(Energies(), DataLoader(positions, 4, shuffle=True), DataLoader(positions, 4))
