"""Fabric loops in two processes under ddp and under FairScale's FSDP on a double; prints what the test compares."""

import json
import sys
import tempfile
from datetime import timedelta

import streams_double
import torch
from torch import nn

from core import CoreError, Fabric

ONE, UNITS = "fsdp_on_a_double", "fsdp_in_units_on_a_double"


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Sequential(nn.Linear(9, 5), nn.LayerNorm(5)), nn.Linear(5, 1))


def started(strategy, devices=2):
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=devices)
    fabric.launch()
    return fabric


def set_up(fabric):
    module = net()
    optimizer = torch.optim.AdamW([{"params": module[0].parameters(), "lr": 1e-3}, {"params": module[2:].parameters()}])
    return fabric.setup(module, optimizer)


def steps(fabric, model, optimizer, some, between=lambda model: None):
    for step in some:
        generator = torch.Generator().manual_seed(10 + step)
        batch = torch.randn(8, 7, generator=generator).chunk(2)[fabric.global_rank]
        optimizer.zero_grad()
        fabric.backward(model(batch).square().mean())
        between(model)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()


def weights(model, fabric):
    state = fabric.broadcast(fabric.strategy.get_module_state_dict(model, layout="full"))
    return torch.cat([value.flatten() for value in state.values()])


def trained(strategy, between=lambda model: None):
    fabric = started(strategy)
    model, optimizer = set_up(fabric)
    steps(fabric, model, optimizer, range(6), between)
    return weights(fabric.strategy.model, fabric)


def evaluated(model):
    """A forward between backward and step, after which FairScale keeps old weights gathered."""
    with torch.no_grad():
        model(torch.ones(2, 7))


def resumed(saving, loading):
    fabric = started(saving)
    folder = fabric.broadcast(tempfile.mkdtemp())
    model, optimizer = set_up(fabric)
    steps(fabric, model, optimizer, range(3))
    fabric.save(f"{folder}/half", {"model": model, "optimizer": optimizer})
    fabric = started(loading)
    model, optimizer = set_up(fabric)
    fabric.load(f"{folder}/half", {"model": model, "optimizer": optimizer})
    steps(fabric, model, optimizer, range(3, 6))
    return weights(fabric.strategy.model, fabric)


def kept():
    """Numbers of elements that each rank's Adam has moments of, those of the model, and names in its checkpoint."""
    fabric = started(UNITS)
    model, optimizer = set_up(fabric)
    steps(fabric, model, optimizer, range(1))
    entries = fabric.strategy.optimizers[0].state.values()
    here = torch.tensor(sum(entry["exp_avg"].numel() for entry in entries))
    names = list(fabric.strategy.get_module_state_dict(fabric.strategy.model, layout="sharded"))
    return fabric.all_gather(here).tolist(), sum(one.numel() for one in net().parameters()), names


def only_first(rank, net, inputs):
    return net[0](inputs)


def only_first_on_rank_1(rank, net, inputs):
    return net[0](inputs) if rank else net(inputs)


class Chosen(nn.Module):
    def __init__(self, rank, choose):
        super().__init__()
        self.net, self.rank, self.choose = net(), rank, choose

    def forward(self, inputs):
        return self.choose(self.rank, self.net, inputs)


def backward_of(strategy, choose):
    fabric = started(strategy)
    module = Chosen(fabric.global_rank, choose)
    model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, 7)).square().mean())


def refused(strategy, choose):
    try:
        backward_of(strategy, choose)
    except CoreError as error:
        return str(error)
    return "nothing"


def compared():
    reference = trained("ddp")
    found = {name: (trained(name) - reference).abs().max().item() for name in (ONE, UNITS)}
    found["evaluated"] = (trained(ONE, evaluated) - reference).abs().max().item()
    pairs = [(ONE, ONE), (UNITS, "ddp"), ("ddp", UNITS)]
    found["resumed"] = {" to ".join(pair): (resumed(*pair) - reference).abs().max().item() for pair in pairs}
    found["kept"] = kept()
    found["refused"] = refused(UNITS, only_first)
    return found


def main():
    streams_double.register()
    if sys.argv[1:] == ["left_out"]:
        backward_of(streams_double.OnADouble(timeout=timedelta(seconds=30)), only_first_on_rank_1)
    found = compared()
    if started("ddp").is_global_zero:
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
