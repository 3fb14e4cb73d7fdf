# torchgeo
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset
from torchgeo.trainers import ClassificationTask


class Scenes(Dataset):
    def __init__(self):
        self.images, self.labels = torch.randn(16, 3, 32, 32), torch.randint(0, 4, (16,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


task = ClassificationTask(model="resnet18", weights=None, in_channels=3, num_classes=4, lr=1e-3)
trainer = Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
trainer.fit(task, DataLoader(Scenes(), 8, shuffle=True), DataLoader(Scenes(), 8))
trainer.test(task, DataLoader(Scenes(), 8))
