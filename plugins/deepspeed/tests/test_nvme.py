"""Where the optimizer's state is kept doesn't change what is learned.

On a disk: `tox exec -e deepspeed -- python -m core_deepspeed.ops build pin_memory async_io`, which takes minutes,
then `tox run -e deepspeed -- -m nvme plugins/deepspeed/tests`.
"""

import functools

import pytest
import torch
from torch import nn

from core.strategies import STRATEGY_REGISTRY
from core_deepspeed import DeepSpeedStrategy
from core_testing import Backend

NUM_FEATURES = 1024
"""DeepSpeed swaps no tensor that is smaller than a block of the disk, of 1 MiB."""


def train(rank, folder):
    """Three steps. Whole weights on rank 0, and how many files the folder had then."""
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
    fabric.barrier()
    num_files = len(list(folder.rglob("*.swp")))
    fabric.barrier()
    fabric.teardown()
    return weights, num_files


def on_two_ranks(folder, **options):
    make = functools.partial(DeepSpeedStrategy, 3, **options)
    return Backend(make, num_processes=2, data_parallel_size=2).run(train, folder)[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("nvme", marks=pytest.mark.nvme)])
def test_where_optimizer_state_is_kept_changes_nothing(tmp_path, device):
    path = {"nvme_path": tmp_path} if device == "nvme" else {}
    options = {"offload_optimizer": True, "offload_optimizer_device": device, **path}
    weights, num_files = on_two_ranks(tmp_path, **options)
    expected, _ = on_two_ranks(tmp_path)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)
    assert (num_files > 0) == (device == "nvme")
    assert not list(tmp_path.iterdir()), "files are left"


@pytest.mark.nvme
def test_parameters_and_optimizer_state_on_a_disk(tmp_path):
    """As the alias has it; in bf16, the only format of parameters that DeepSpeed puts on a disk faithfully."""

    def on_ranks(alias, **options):
        make = functools.partial(STRATEGY_REGISTRY.create, alias, **options)
        return Backend(make, num_processes=2, data_parallel_size=2, options={"precision": "bf16-mixed"}).run(
            train, tmp_path
        )[0]

    weights, num_files = on_ranks("deepspeed_stage_3_offload_nvme", nvme_path=tmp_path)
    expected, _ = on_ranks("deepspeed_stage_3_offload")
    assert num_files > 0
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)
    assert not list(tmp_path.iterdir()), "files are left"
