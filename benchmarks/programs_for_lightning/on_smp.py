# segmentation-models-pytorch
import lightning.pytorch as pl
import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset


class Segmenter(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1)
        self.loss = smp.losses.DiceLoss(smp.losses.BINARY_MODE)

    def training_step(self, batch, batch_idx):
        images, masks = batch
        loss = self.loss(self.model(images), masks)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        found = (self.model(images).sigmoid() > 0.5).long()
        tp, fp, fn, tn = smp.metrics.get_stats(found, masks.long(), mode="binary")
        self.log("iou", smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro"))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(8, 1, 32, 32), torch.randint(0, 2, (8, 1, 32, 32)).float())
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
module = Segmenter()
trainer.fit(module, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
