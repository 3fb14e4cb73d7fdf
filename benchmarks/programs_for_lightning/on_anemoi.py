# anemoi-training
import os

import pytorch_lightning as pl
import torch
from anemoi.training.distributed.strategy import DDPGroupStrategy
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

os.environ["ANEMOI_BASE_SEED"] = "1234"


class Model(BoringModel):
    shard_sizes = (1,)

    def set_model_comm_group(self, group, *numbers):
        self.model_comm_group = numbers

    def set_reader_groups(self, groups, *numbers):
        self.reader_group = numbers

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        return loss * (1 + self.model_comm_group[0] + torch.rand(1).item())


class Data(RandomDataset):
    def set_comm_group_info(self, *numbers):
        self.numbers = numbers


strategy = DDPGroupStrategy(num_gpus_per_model=1, read_group_size=1, process_group_backend="gloo")
trainer = pl.Trainer(
    max_epochs=3, accelerator="cpu", devices=1, strategy=strategy, use_distributed_sampler=False
)
data = Data(32, 32)
trainer.fit(Model(), DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
print(data.numbers)
