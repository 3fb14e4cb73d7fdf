# ray
import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from ray.train import ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader


class Model(BoringModel):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def train():
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        use_distributed_sampler=False,
        enable_progress_bar=False,
    )
    trainer = prepare_trainer(trainer)
    model, data = Model(), RandomDataset(32, 32)
    trainer.fit(model, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    trainer.test(model, DataLoader(data, 4))


TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()  # in this process
