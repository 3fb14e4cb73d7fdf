"""Runs on simulated Gaudi devices, and prints what the vendor's library has done to the environment
and to a module.

python vendor_program.py
"""

import json
import os

import torch
from torch import nn

from core import Fabric, Trainer

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "HLS_MODULE_ID", "ID")


class Tied(nn.Module):
    """The first and the last layer have one weight, and the middle one is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.last.weight = self.first.weight
        self.middle.requires_grad_(False)

    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs)).relu())


def after_import_by_the_script():
    """The port of a run whose script has imported the library before, as the vendor's pages say."""
    import habana_frameworks.torch.core  # noqa: F401

    left = os.environ["MASTER_PORT"]
    return [left, port_of_a_run()]


def port_of_a_run():
    trainer = Trainer(accelerator="hpu", devices=2, strategy="hpu_parallel", **QUIET)
    return trainer.strategy.cluster_environment.main_port


def train(accelerator):
    """Three steps of an optimizer that was made, and has stepped, before its module was set up; by
    two runs.
    """
    module = Tied()
    before = module.first.weight
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    inputs = torch.ones(2, 4)
    module(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    fabric = Fabric(accelerator=accelerator, devices=1)
    model, stepped = fabric.setup(module, optimizer)
    for _ in range(3):
        fabric.backward(model(fabric.to_device(inputs)).square().mean())
        stepped.step()
        stepped.zero_grad()
    names = fabric.session.parameter_names(optimizer)
    told = {
        "weights": {name: value.tolist() for name, value in module.state_dict().items()},
        "names": names,
        "is tied": module.first.weight is module.last.weight,
        "is replaced": module.first.weight is not before,
        "holds": optimizer.param_groups[0]["params"][0] is module.first.weight,
        "frozen": not module.middle.weight.requires_grad,
    }
    fabric.teardown()
    return told


def main():
    told = {"before": {name: os.environ.get(name) for name in NAMES}}
    told["port"] = port_of_a_run()
    told["after"] = {name: os.environ.get(name) for name in NAMES}
    told["hpu"], told["cpu"] = train("hpu"), train("cpu")
    print(json.dumps(told))


if __name__ == "__main__":
    import sys

    print(json.dumps(after_import_by_the_script())) if sys.argv[1:] else main()
