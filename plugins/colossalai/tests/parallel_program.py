"""Two ranks set up models with a stand-in for Gemini, which gives values to parameters as Gemini
does; prints JSON.
"""

import contextlib
import json

import torch
from torch import nn

from core import Fabric
from core_colossalai import ColossalAIStrategy, engine, library


class OnACPU(ColossalAIStrategy):
    def check_device(self, device_type):
        assert device_type == "cpu"


class Boosted:
    def __init__(self, optimizer):
        self.unwrap, self.zero_grad = (lambda: optimizer), optimizer.zero_grad


def boost(booster, module, optimizer):
    """Give values to lazy parameters, as `GeminiDDP._preprocess_param` does."""
    library.load("colossalai.lazy").LazyInitContext.materialize(module)
    return module, Boosted(optimizer)


def main():
    engine.library.boost, library.booster = boost, lambda *args: None
    library.gemini_optimizers = lambda: {torch.optim.SGD}
    found = {}
    for name, lazy in (("after", True), ("built", False)):
        fabric = Fabric(strategy=OnACPU("gemini", precision="bf16"), accelerator="cpu", devices=2)
        fabric.launch()
        torch.manual_seed(fabric.global_rank)
        with fabric.init_module() if lazy else contextlib.nullcontext():
            module = nn.Linear(3, 2)
        if lazy:
            found["before"] = fabric.strategy.gather_objects(
                [type(module.weight).__name__, module.weight.is_meta]
            )
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        found[name] = fabric.strategy.gather_objects([one.tolist() for one in module.parameters()])
        fabric.teardown()
    if fabric.global_rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
