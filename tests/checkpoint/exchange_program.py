"""Started by test_across_strategies.py: trains two steps, saves or goes on, and prints what rank 0 has then."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Fabric


def train(fabric, path, goes_on):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    data = TensorDataset(torch.linspace(-1, 1, 64).double().reshape(16, 4))
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8 // fabric.world_size))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "steps": 0}
    if goes_on:
        fabric.load(path, state)
    for (inputs,) in loader:
        optimizer.zero_grad()
        fabric.backward(model(inputs).square().mean())
        optimizer.step()
        scheduler.step()
        state["steps"] += 1
    if not goes_on:
        fabric.save(path, state)
    fabric.print(state["steps"], scheduler.get_last_lr()[0], *(f"{p.sum().item():.12f}" for p in model.parameters()))


if __name__ == "__main__":
    strategy, path, goes_on = sys.argv[1:]
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=1 if strategy == "single_device" else 2)
    fabric.launch(train, path, goes_on == "yes")
