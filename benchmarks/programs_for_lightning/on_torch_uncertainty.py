# torch-uncertainty
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty import TUTrainer
from torch_uncertainty.routines import ClassificationRoutine

points = torch.randn(128, 4)
data = TensorDataset(points, (points.sum(1) > 0).long())
network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
routine = ClassificationRoutine(
    network,
    num_classes=2,
    loss=nn.CrossEntropyLoss(),
    optim_recipe=torch.optim.SGD(network.parameters(), lr=0.1),
)
trainer = TUTrainer(accelerator="cpu", max_epochs=2, enable_progress_bar=False, logger=False)
trainer.fit(routine, DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
trainer.test(routine, DataLoader(data, 16))
