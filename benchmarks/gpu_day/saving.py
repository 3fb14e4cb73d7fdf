"""Checkpoints: their bandwidth, saves beside training, and a run that goes on."""

import statistics
import time
from functools import partial

import torch
from torch import nn

from core import Fabric
from core.checkpoint import AsyncCheckpointIO
from gpu_day.setting import (
    DEVICE,
    KIND,
    MIB,
    SMALL,
    Net,
    expect,
    folder,
    loader,
    make_trainer,
    seconds,
    synchronize,
)


def make_state(num_mib):
    """A module of so many MiB, with Adam's moments three times as much, that has stepped."""
    fabric = Fabric(accelerator=KIND, devices=1)
    width = round((num_mib * MIB / 4 / 8) ** 0.5)
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    module, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=1e-3))
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    num_bytes = 3 * sum(parameter.nbytes for parameter in module.parameters())
    return fabric, module, optimizer, num_bytes


def rate(num_bytes, took):
    """GB/s."""
    return round(num_bytes / took / 1e9, 2)


def saves():
    """Bandwidth of saves and loads, beside that of a plain copy from the device."""
    fabric, module, optimizer, num_bytes = make_state(4 if SMALL else 340)
    moments = [
        each for entry in optimizer.state.values() for each in entry.values() if each.numel() > 1
    ]
    tensors = [*module.parameters(), *moments]
    pinned = [torch.empty(each.shape, dtype=each.dtype, pin_memory=not SMALL) for each in tensors]

    def copy():
        with torch.no_grad():
            for target, source in zip(pinned, tensors, strict=True):
                target.copy_(source, non_blocking=True)

    copy()
    figures = {
        "state, MB": round(num_bytes / 1e6),
        "plain copy to pinned memory, GB/s": rate(num_bytes, seconds(copy)),
    }
    pageable = seconds(lambda: [each.detach().to("cpu", copy=True) for each in tensors])
    figures["plain copy to pageable memory, GB/s"] = rate(num_bytes, pageable)
    with folder() as path:
        state = {"model": module, "optimizer": optimizer}
        took = [
            seconds(partial(fabric.save, path / f"{number}.ckpt", state)) for number in range(3)
        ]
        figures["save, GB/s"] = rate(num_bytes, min(took))
        before = [each.detach().clone() for each in tensors]
        for each in tensors:
            each.detach().zero_()
        took = [seconds(partial(fabric.load, path / "2.ckpt", state)) for _ in range(3)]
        figures["load, GB/s"] = rate(num_bytes, min(took))
        moments = [
            each
            for entry in optimizer.state.values()
            for each in entry.values()
            if each.numel() > 1
        ]
        found = [*module.parameters(), *moments]
        same = all(torch.equal(one, other) for one, other in zip(before, found, strict=True))
        expect(same, "what was loaded isn't what was saved")
    fabric.teardown()
    return figures


def asynchronous_saves():
    """How long a save holds up a loop that goes on, and that what is saved is of the moment of the
    call.
    """
    fabric, module, optimizer, num_bytes = make_state(4 if SMALL else 340)
    io = AsyncCheckpointIO()
    fabric.strategy.checkpoint_io = io
    inputs = torch.randn(512, next(module.parameters()).shape[1], device=DEVICE)

    def step():
        fabric.backward(module(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    figures = {"state, MB": round(num_bytes / 1e6)}
    with folder() as path:
        step()
        usual = statistics.median(seconds(step) for _ in range(5))
        calls, steps = [], []
        for number in range(3):
            expected = [parameter.detach().clone() for parameter in module.parameters()]
            synchronize()
            began = time.perf_counter()
            fabric.save(path / f"{number}.ckpt", {"model": module, "optimizer": optimizer})
            calls.append(time.perf_counter() - began)
            steps.append(seconds(step))
            saved = fabric.load(path / f"{number}.ckpt")
            found = list(saved["model"].values())
            same = all(torch.equal(a.cpu(), b) for a, b in zip(expected, found, strict=True))
            expect(same, "a step after the save has changed what was saved")
        io.teardown()
    figures |= {
        "a step, ms": round(1000 * usual, 2),
        "the call, ms": [round(1000 * each, 2) for each in calls],
        "the step after it, ms": [round(1000 * each, 2) for each in steps],
    }
    fabric.teardown()
    return figures


def resume():
    """A run with dropout that is stopped and goes on, bit by bit as one that wasn't."""
    with folder() as path:
        whole = Net()
        make_trainer(max_epochs=4, deterministic=True).fit(whole, loader())
        first = Net()
        trainer = make_trainer(max_epochs=2, deterministic=True)
        trainer.fit(first, loader())
        trainer.save_checkpoint(path / "two.ckpt")
        torch.manual_seed(99)
        second = Net()
        make_trainer(max_epochs=4, deterministic=True).fit(
            second, loader(), ckpt_path=path / "two.ckpt"
        )
    for name, value in whole.state_dict().items():
        expect(
            torch.equal(value.cpu(), second.state_dict()[name].cpu()),
            f"{name} differs from that of an unbroken run",
        )
    return {"last loss": whole.losses[-1].item(), "weights": "bit-equal"}
