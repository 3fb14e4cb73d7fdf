# finetuning-scheduler
import lightning.pytorch as pl
import torch
from finetuning_scheduler import FinetuningScheduler, FTSCheckpoint, FTSEarlyStopping
from lightning.pytorch.demos.boring_classes import RandomDataset


class Layers(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD([each for each in self.parameters() if each.requires_grad], lr=0.1)


callbacks = [
    FinetuningScheduler(max_depth=1),
    FTSCheckpoint(monitor="val_loss", save_top_k=2),
    FTSEarlyStopping(monitor="val_loss", patience=1, min_delta=0.05),
]
trainer = pl.Trainer(
    max_epochs=6, accelerator="cpu", devices=1, callbacks=callbacks, enable_progress_bar=False
)
data = torch.utils.data.DataLoader(RandomDataset(8, 16), batch_size=4)
trainer.fit(Layers(), data, data)
print(
    trainer.current_epoch,
    trainer.callback_metrics,
    trainer.checkpoint_callback.best_model_path.split("/")[-1],
)
