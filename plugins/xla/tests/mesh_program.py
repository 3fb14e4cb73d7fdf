"""Trains over a mesh with a data and a model axis, then with all parameters cut; tells how tensors
lie.

python mesh_program.py
"""

import json

from lessons import Net, furthest, refusal, train
from torch import nn

from core import ConfigurationError, Fabric, ModuleError
from core.strategies import XLAFSDPStrategy, XLASPMDStrategy


def layout(tensor):
    import torch_xla

    return torch_xla._XLAC._get_xla_sharding_spec(tensor)


def refused(**options):
    """The error of a strategy with these options."""

    def set_up():
        Fabric(accelerator="xla", devices=4, strategy=XLASPMDStrategy(**options)).setup(Net())

    return refusal((ConfigurationError, ModuleError), set_up)


def main():
    told = {}
    plan = {"middle.weight": ("model", None), "middle.bias": ("model",)}
    strategy = XLASPMDStrategy(mesh={"data": 2, "model": -1}, parameter_shardings=plan)
    module, trainer, on_mesh = train(accelerator="xla", devices=4, strategy=strategy)
    told["middle"], told["first"] = layout(module.middle.weight), layout(module.first.weight)
    told["num_devices"], told["world_size"] = trainer.strategy.num_devices, trainer.world_size

    fsdp = XLAFSDPStrategy(auto_wrap_policy={nn.Linear})
    cut, _, cut_losses = train(accelerator="xla", devices=4, strategy=fsdp)
    told["hooks"] = [len(layer._forward_hooks) for layer in (cut.first, cut.middle, cut.last)]
    told["cut"] = [layout(parameter) for parameter in cut.parameters()]
    told["patterns"] = refused(parameter_shardings={"nothing.*": ("data", None)})
    told["axes"] = refused(parameter_shardings={"middle.weight": ("tensor", None)})
    told["dimensions"] = refused(parameter_shardings={"middle.weight": ("data",)})
    told["sizes"] = refused(mesh={"data": 3})
    two = {"accelerator": "xla", "devices": 2, "strategy": "xla_spmd"}
    told["other_devices"] = refusal(ConfigurationError, lambda: train(**two))

    expected = train(accelerator="cpu", devices=1)[2]
    told["mesh"], told["fsdp"] = furthest(on_mesh, expected), furthest(cut_losses, expected)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
