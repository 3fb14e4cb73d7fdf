"""The cost of a save and of a load in calls of core's own code, the same in every run."""

import inspect
import sys

import torch

from core import Fabric

TENSORS_PER_LAYER = 4
"""Weight, bias, and the momentum of each."""


def trained(num_layers):
    fabric = Fabric(accelerator="cpu")
    net = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(num_layers)])
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return fabric, {"model": model, "optimizer": optimizer}


def calls_of(function, *args):
    calls = 0

    def profile(frame, event, argument):
        nonlocal calls
        is_ours = frame.f_globals.get("__name__", "").partition(".")[0] == "core"
        calls += event == "call" and is_ours and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)

    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls


def per_tensor(folder, method):
    """The slope between a small and a large model, without what a checkpoint takes however small it
    is.
    """
    found = []
    for num_layers in (10, 60):
        fabric, state = trained(num_layers)
        fabric.save(folder / str(num_layers), state)
        fabric.load(folder / str(num_layers), state)  # what is imported at the first use
        found.append(calls_of(getattr(fabric, method), folder / str(num_layers), state))
    small, large = found
    return (large - small) / (50 * TENSORS_PER_LAYER)


def test_a_save_asks_each_tensor_few_questions(tmp_path):
    assert per_tensor(tmp_path, "save") < 30


def test_a_load_asks_each_tensor_few_questions(tmp_path):
    assert per_tensor(tmp_path, "load") < 30
