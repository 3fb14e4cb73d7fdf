"""Bytes of activations that autograd keeps for backward, counted by hooks around the forward. One
process.

python benchmarks/activation_memory.py [--layers 24] [--width 256]
"""

import argparse

import torch
from compile_units import Block
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from core import Fabric

WAYS = {
    "all are kept": {},
    'activation_checkpointing="units"': {"activation_checkpointing": "units"},
}


def measure(options, width, num_layers):
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    module = nn.Sequential(*(Block(width) for _ in range(num_layers)))
    model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(torch.randn(8, 128, width)).square().mean()
    num_bytes = sum(kept.values())
    fabric.backward(loss)
    return num_bytes, sum(float(parameter.grad.double().sum()) for parameter in module.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    print(f"{arguments.layers} blocks of width {arguments.width}, 8 sequences of 128")
    print(f"{'':36} {'MiB kept':>9} {'sum of gradients':>24}")
    for way, options in WAYS.items():
        num_bytes, gradients = measure(options, arguments.width, arguments.layers)
        print(f"{way:36} {num_bytes / 2**20:9.1f} {gradients:24.16g}")


if __name__ == "__main__":
    main()
