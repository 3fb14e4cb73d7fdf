"""Where the optimizer's state is kept doesn't change what is learned.

On a disk: `tox exec -e deepspeed -- python -m core_deepspeed.ops build pin_memory async_io`, which
takes minutes, then `tox run -e deepspeed -- -m nvme plugins/deepspeed/tests`.
"""

import functools

import pytest
import torch
from torch import nn
from zero_ranks import on_two_ranks

NUM_FEATURES = 1024
"""DeepSpeed swaps no tensor that is smaller than a block of the disk, of 1 MiB."""


def train(rank, folder):
    """Three steps. Whole weights on rank 0, and how many files the folder had then."""
    fabric = rank.fabric()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(NUM_FEATURES, NUM_FEATURES), nn.Tanh(), nn.Linear(NUM_FEATURES, 1)
    )
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for step in range(3):
        inputs = torch.randn(
            8, NUM_FEATURES, generator=torch.Generator().manual_seed(10 * step + rank.number)
        )
        fabric.backward((model(inputs) - inputs.mean(1, keepdim=True)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.barrier()
    num_files = len(list(folder.rglob("*.swp")))
    fabric.barrier()
    fabric.teardown()
    return weights, num_files


OFFLOAD = {"offload_optimizer": True}
ON_DISK = {**OFFLOAD, "offload_optimizer_device": "nvme"}
# In bf16, the only format of parameters that DeepSpeed puts on a disk faithfully.
ALL_ON_DISK = {
    **ON_DISK,
    "offload_parameters": True,
    "offload_params_device": "nvme",
    "remote_device": "nvme",
}


@pytest.mark.nvme
@pytest.mark.parametrize(
    ("options", "others", "precision"),
    [
        (ON_DISK, {}, "32-true"),
        (ALL_ON_DISK, {**OFFLOAD, "offload_parameters": True}, "bf16-mixed"),
    ],
    ids=["nvme", "parameters on nvme too"],
)
def test_where_state_is_kept_changes_nothing(tmp_path, options, others, precision):
    run = functools.partial(
        on_two_ranks, train, tmp_path, stage=3, config=None, trainer={"precision": precision}
    )
    (weights, num_files), (expected, _) = run(**options, nvme_path=tmp_path)[0], run(**others)[0]
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-4)
    assert num_files > 0
    assert not list(tmp_path.iterdir()), "files are left"
