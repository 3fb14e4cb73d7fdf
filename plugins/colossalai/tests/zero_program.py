"""Fabric loops in two processes under `low_level_zero` on a double; prints what `test_zero.py`
compares.
"""

import json
import sys
from datetime import timedelta

import torch
from accelerator_double import Zero1OnADouble
from torch import nn

from core import Fabric
from core_colossalai import ColossalAICheckpointIO


def started(**options):
    fabric = Fabric(strategy=Zero1OnADouble(**options), accelerator="cpu", devices=2)
    fabric.launch()
    return fabric


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def masters():
    """The largest difference of masters from the user's weights, and of those rounded as
    Colossal-AI rounds them.
    """
    fabric = started(precision="bf16")
    module = nn.Sequential(net(), nn.BatchNorm1d(3))
    given = [one.detach().clone() for one in module.parameters()]
    fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    held = list(fabric.strategy.engine.module_values().values())
    fabric.teardown()
    assert not [
        name
        for name, one in module.state_dict().items()
        if one.dtype not in (torch.float32, torch.int64)
    ]
    assert all(torch.equal(one, own) for one, own in zip(given, module.parameters(), strict=True))
    rounded = [one.to(torch.bfloat16).float() for one in given]
    return [
        max((one - other).abs().max().item() for one, other in zip(given, own, strict=True))
        for own in (held, rounded)
    ]


def clipped_twice():
    """Norms before clipping, in two steps with the same gradients: the first clips, the second
    doesn't.
    """
    fabric = started()
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1.0))
    moved = []
    for clips in (True, False):
        before = module[0].bias.detach().clone()
        optimizer.zero_grad()
        fabric.backward(1000 * model(torch.ones(2, 5)).square().mean())
        if clips:
            fabric.clip_gradients(model, optimizer, max_norm=1e-3)
        optimizer.step()
        moved.append((module[0].bias - before).abs().max().item())
    return moved


def float16():
    """The first and the last loss, the scale at the end, and the scale after it went through a
    state.
    """
    fabric = started(precision="fp16", initial_scale=2.0**30, hysteresis=1)
    module = net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.05))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 5)).float() - 1).square().mean()
        losses.append(loss.item())
        fabric.backward(loss)
        optimizer.step()
    precision = fabric.strategy.precision_plugin
    state = precision.state_dict()
    precision.load_state_dict({**state, "scale": 8.0})
    return [losses[0], losses[-1], state["scale"], precision.state_dict()["scale"]]


def native(folder):
    """The differences after a checkpoint in Colossal-AI's own layout was read, by the strategy and
    as whole tensors.
    """
    differences = []
    for precision, kind in (
        ("fp32", torch.optim.AdamW),
        ("bf16", torch.optim.AdamW),
        ("fp32", torch.optim.SGD),
    ):
        path = f"{folder}/{precision}-{kind.__name__}"
        fabric, module, model, optimizer = stepped(precision, kind)
        fabric.save(path, {"model": model, "optimizer": optimizer})
        held = states(fabric, module, optimizer)
        fabric.teardown()
        fabric, module, model, optimizer = stepped(precision, kind, seed=4)
        fabric.load(path, {"model": model, "optimizer": optimizer})
        found = states(fabric, module, optimizer)
        fabric.teardown()
        whole = ColossalAICheckpointIO().load_checkpoint(path, collectives=None)
        read = [whole["model"], whole["optimizer"]["state"]]
        differences.append([apart(held, found), apart(held, read)])
    return differences


def stepped(precision, kind, seed=3):
    fabric = started(precision=precision, colossalai_checkpoint="native")
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3).requires_grad_(False), nn.Linear(3, 3))
    model, optimizer = fabric.setup(module, kind(module.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        fabric.backward(model(torch.ones(2, 5)).float().square().mean())
        optimizer.step()
    return fabric, module, model, optimizer


def states(fabric, module, optimizer):
    strategy = fabric.strategy
    strategy.colossalai_checkpoint = "canonical"
    weights = {
        name: value.clone() for name, value in strategy.get_module_state_dict(module).items()
    }
    entries = strategy.get_optimizer_state_dict(optimizer.optimizer)["state"]
    strategy.colossalai_checkpoint = "native"
    return [weights, entries]


def apart(one, other):
    """The largest difference of weights, and of an optimizer's state."""
    (weights, entries), (other_weights, other_entries) = one, other
    assert weights.keys() == other_weights.keys()
    assert entries.keys() == other_entries.keys()
    pairs = [(value, other_weights[name]) for name, value in weights.items()]
    kept = [
        (value, other_entries[name][key])
        for name, entry in entries.items()
        for key, value in entry.items()
    ]
    kept = [(value, other) for value, other in kept if value is not None]
    return [
        max([(value - other.to(value.dtype)).abs().max().item() for value, other in each] or [0.0])
        for each in (pairs, kept)
    ]


def left_out():
    """One rank's loss leaves out a layer, which ends the program."""
    fabric = started(timeout=timedelta(seconds=30))
    module = Chosen()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, 4), fabric.global_rank == 0).sum())
    optimizer.step()


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, uses_both):
        return self.second(self.first(x) if uses_both else x)


def main():
    if sys.argv[1:] == ["left_out"]:
        left_out()
        return
    found = {
        "masters": masters(),
        "clipped": clipped_twice(),
        "float16": float16(),
        "native": native("native"),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
