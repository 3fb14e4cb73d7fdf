"""Where the optimizer's state is kept doesn't change what is learned. On a disk: `tox run -e deepspeed-nvme`."""

import functools

import pytest
import torch
from torch import nn

from core.testing import Backend
from core_deepspeed import DeepSpeedStrategy

NUM_FEATURES = 512
"""DeepSpeed swaps no tensor that is smaller than a block of the disk."""


def train(rank):
    """Three steps. Whole weights, on rank 0."""
    fabric = rank.fabric()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, NUM_FEATURES), nn.Tanh(), nn.Linear(NUM_FEATURES, 1))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for step in range(3):
        inputs = torch.randn(8, NUM_FEATURES, generator=torch.Generator().manual_seed(10 * step + rank.number))
        fabric.backward((model(inputs) - inputs.mean(1, keepdim=True)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.teardown()
    return weights


def on_two_ranks(**options):
    make = functools.partial(DeepSpeedStrategy, 3, **options)
    return Backend(make, num_processes=2, num_shares=2).run(train)[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("nvme", marks=pytest.mark.nvme)])
def test_where_optimizer_state_is_kept_changes_nothing(tmp_path, device):
    folder = {"nvme_path": tmp_path} if device == "nvme" else {}
    weights = on_two_ranks(offload_optimizer=True, offload_optimizer_device=device, **folder)
    for name, expected in on_two_ranks().items():
        torch.testing.assert_close(weights[name], expected, rtol=0, atol=1e-4)
    if device == "nvme":
        assert list(tmp_path.rglob("*.swp")), "nothing has gone to the disk"
