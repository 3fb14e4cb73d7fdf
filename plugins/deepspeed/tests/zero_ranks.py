"""Small models on two ranks under ZeRO, for tests that say `from zero_ranks import ...`."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from core_deepspeed import DeepSpeedStrategy
from core_testing import Backend

CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def on_two_ranks(function, *args, stage=2, trainer=None, **options):
    """What it returns on each; `trainer` are options of Trainer and Fabric."""
    make = functools.partial(
        DeepSpeedStrategy, stage, **{"config": CUT if stage == 3 else None, **options}
    )
    return Backend(make, num_processes=2, data_parallel_size=2, options=trainer or {}).run(
        function, *args
    )


def on_one_device(function, *args, **options):
    alone = Backend(lambda: "single_device", options=options, in_process=True)
    return alone.run(function, *args)[0]


def share_of(rank, step):
    """A rank's part of the batch of a step."""
    return make_batch(step, rank.number if rank.backend.num_processes == 2 else None)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def make_batch(step, rank):
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
    return inputs.chunk(2)[rank] if rank is not None else inputs


def loss_of(model, inputs):
    return functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin())


def end(fabric, model):
    """Whole weights on rank 0, and the end of the run."""
    weights = fabric.strategy.get_module_state_dict(model, layout="full")
    fabric.teardown()
    return weights
