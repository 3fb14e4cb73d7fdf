# nemo_toolkit
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from nemo.utils.cloud import SageMakerDDPStrategy
from torch.utils.data import DataLoader

os.environ.update(WORLD_SIZE="1", RANK="0")


class Model(BoringModel):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


strategy = SageMakerDDPStrategy(process_group_backend="gloo")
trainer = pl.Trainer(
    max_epochs=3, accelerator="cpu", devices=1, strategy=strategy, use_distributed_sampler=False
)
data = RandomDataset(32, 32)
trainer.fit(Model(), DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
