# kraken
import lightning.pytorch as pl
import torch
from kraken.train.utils import KrakenTrainer
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Sequential):
    model_type = ("segmentation",)


class Lines(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


points = torch.randn(64, 8)
data = TensorDataset(points, (points.sum(1) > 0).long())
trainer = KrakenTrainer(min_epochs=1, max_epochs=4, enable_progress_bar=False, accelerator="cpu")
trainer.fit(Lines(), DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
