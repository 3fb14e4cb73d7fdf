"""Fabric loops in two processes under core-fairscale and under ddp; prints what `test_strategy.py` compares."""

import json
import sys
import tempfile

import torch
from torch import nn

from core import CoreError, Fabric


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).double()


def batches(rank, number=8):
    generator = torch.Generator().manual_seed(10 + rank)
    return [torch.randn(6, 8, generator=generator).double() for _ in range(number)]


def started(strategy):
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=2)
    fabric.launch()
    return fabric


def with_none(model, optimizer, step):
    optimizer.zero_grad()


def with_zeros(model, optimizer, step):
    optimizer.zero_grad(set_to_none=False)


def by_the_model(model, optimizer, step):
    model.zero_grad()


def by_hand(model, optimizer, step):
    for parameter in model.parameters():
        parameter.grad = None


def every_second(model, optimizer, step):
    if step % 2 == 0:
        optimizer.zero_grad()


ZEROING = {each.__name__: each for each in (with_none, with_zeros, by_the_model, by_hand, every_second)}


def trained(strategy, zero, clip=False, evaluates=False):
    """Weights, buffers and the norm of the last gradients."""
    fabric = started(strategy)
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step, batch in enumerate(batches(fabric.global_rank)):
        zero(model, optimizer, step)
        fabric.strategy.model.train(not evaluates or step < 4)  # the wrapper, and so all in it
        fabric.backward(model(batch).square().mean())
        if clip:
            fabric.clip_gradients(model, optimizer, max_norm=0.05)
        optimizer.step()
        scheduler.step()
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()])


def accumulated(strategy):
    """Two batches a step, of which the first one's gradients stay on their rank."""
    fabric = started(strategy)
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    for step, batch in enumerate(batches(fabric.global_rank)):
        with fabric.no_backward_sync(model, enabled=step % 2 == 0):
            fabric.backward(model(batch).square().mean())
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()])


def owned(strategy):
    """Numbers of elements that each rank's optimizer keeps moments of."""
    fabric = started(strategy)
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
    fabric.backward(model(batches(0)[0]).sum())
    optimizer.step()
    part = fabric.strategy.optimizers[0].optim.state.values()
    here = torch.tensor(sum(entry["exp_avg"].numel() for entry in part))
    return fabric.all_gather(here).tolist(), sum(one.numel() for one in module.parameters())


def resumed(saving, loading):
    """A run that another strategy saved after 4 of 8 steps."""
    fabric = started(saving)
    folder = fabric.broadcast(tempfile.mkdtemp())
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
    steps(fabric, model, optimizer, slice(0, 4))
    fabric.save(f"{folder}/half", {"model": model, "optimizer": optimizer})
    fabric = started(loading)
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
    fabric.load(f"{folder}/half", {"model": model, "optimizer": optimizer})
    steps(fabric, model, optimizer, slice(4, 8))
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()])


def steps(fabric, model, optimizer, some):
    for batch in batches(fabric.global_rank)[some]:
        optimizer.zero_grad()
        fabric.backward(model(batch).square().mean())
        optimizer.step()


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.common, self.first = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, inputs, rank):
        return self.common(inputs) + (self.first(inputs) if rank == 0 else 0)


def half_used(strategy):
    fabric = started(strategy)
    module = HalfUsed().double()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    try:
        for batch in batches(fabric.global_rank, 3):
            optimizer.zero_grad()
            fabric.backward(model(batch, fabric.global_rank).square().mean())
            optimizer.step()
    except CoreError as error:
        return str(error)
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def unlike(strategy):
    fabric = started(strategy)
    module = nn.Linear(4, 1 + fabric.global_rank)
    try:
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    except CoreError as error:
        return str(error)
    return "trained"


def difference(function, *arguments, of=("ddp", "ddp_sharded"), **options):
    first, second = (function(one, *arguments, **options) for one in of)
    return (first - second).abs().max().item()


def main():
    found = {name: difference(trained, zero) for name, zero in ZEROING.items()}
    found["clipped"] = difference(trained, with_none, clip=True)
    found["in eval()"] = difference(trained, with_none, evaluates=True)
    found["accumulated"] = difference(accumulated)
    unused = "_find_unused_parameters_true"
    found["unused on a rank"] = difference(half_used, of=(f"ddp{unused}", f"ddp_sharded{unused}"))
    found["refused"] = half_used("ddp_sharded")
    found["unlike"] = unlike("ddp_sharded")
    found["owned"] = owned("ddp_sharded")
    reference = resumed("ddp", "ddp")
    pairs = [("ddp_sharded", "ddp_sharded"), ("ddp_sharded", "ddp"), ("ddp", "ddp_sharded")]
    found["resumed"] = {" to ".join(pair): (resumed(*pair) - reference).abs().max().item() for pair in pairs}
    if started("ddp").is_global_zero:
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
