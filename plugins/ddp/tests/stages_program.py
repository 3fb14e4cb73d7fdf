"""fit, validate and test in one `ddp` script, and runs of one process beside them.

python stages_program.py WHAT
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core_testing.ranks import QUIET


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("mean", batch[0].mean())
        self.log("count", float(len(batch[0])), reduce_fx="sum")

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Beginning(Callback):
    def on_train_start(self, trainer, module):
        print("a run of one process begins", flush=True)


def main(what):
    data = DataLoader(TensorDataset(torch.arange(44.0).view(11, 4)), batch_size=2)
    options = {"strategy": "ddp", "accelerator": "cpu", "devices": 2, **QUIET}
    alone = {**options, "strategy": "single_device", "devices": 1}
    if what == "alone-before":
        Trainer(**alone).validate(Net(), data)
    trainer, module = Trainer(**options, max_epochs=1), Net()
    trainer.fit(module, data, data)
    fitted = {name: value.item() for name, value in trainer.callback_metrics.items()}
    if what != "stages":
        Trainer(**alone, max_epochs=1, callbacks=Beginning()).fit(module, data)
    validated, tested = trainer.validate(module, data), Trainer(**options).test(module, data)
    if trainer.is_global_zero:
        print([fitted], validated, tested, Trainer(**alone).test(module, data), sep="\n", flush=True)
    Trainer(**{**options, "devices": 3}).validate(module, data)


if __name__ == "__main__":
    main(sys.argv[1])
