"""Ranks share the writing of what they have in common, and only of that."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from core.checkpoint import load_checkpoint
from core_ddp import DDPStrategy
from core_testing import Backend


class Own(DDPStrategy):
    def configure_ddp(self):
        self.model = DistributedDataParallel(self.model)


def save(rank, path):
    torch.manual_seed(rank.number)
    fabric, net = rank.fabric(), nn.Sequential(*(nn.Linear(200, 200, bias=False) for _ in range(4)))
    net.append(nn.BatchNorm1d(200))
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters()))
    model(torch.randn(4, 200)).sum().backward()
    optimizer.step()
    fabric.save(
        path,
        {
            "model": model,
            "optimizer": optimizer,
            "mine": torch.full((100_000,), float(rank.number)),
        },
    )
    return net.state_dict()


def written(path, make):
    """The state of rank 0, and the sizes of the files."""
    state = Backend(make, num_processes=2).run(save, path)[0]
    return state, [file.stat().st_size for file in sorted(path.glob("*.data"))]


def test_each_rank_writes_a_half(tmp_path):
    state, (first, second) = written(tmp_path / "last.ckpt", DDPStrategy)
    large = 12 * 200 * 200 * 4  # weights and moments
    assert second == large / 2
    assert large / 2 + 400_000 < first < large / 2 + 420_000  # what isn't a parameter is rank 0's
    loaded = load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["mine"].unique().tolist() == [0]
    assert all(torch.equal(loaded["model"][name], value) for name, value in state.items())


@pytest.mark.parametrize(
    "make", [lambda: DDPStrategy(ddp_comm_hook=fp16_compress_hook), Own], ids=["hook", "wrapper"]
)
def test_rank_zero_writes_all_where_weights_may_differ(tmp_path, make):
    _, sizes = written(tmp_path / "last.ckpt", make)
    assert len(sizes) == 1
