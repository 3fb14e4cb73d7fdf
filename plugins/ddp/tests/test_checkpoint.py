"""Ranks share the writing of what they have in common, and only of that."""

import pytest
import torch
from torch import nn

from core import Fabric
from core.checkpoint import load_checkpoint
from core_ddp import DDPStrategy


def save(folder, **options):
    def body(fabric):
        torch.manual_seed(fabric.global_rank)
        net = nn.Sequential(*(nn.Linear(200, 200, bias=False) for _ in range(4)), nn.BatchNorm1d(200))
        model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters()))
        model(torch.randn(4, 200)).sum().backward()
        optimizer.step()
        mine = torch.full((100_000,), float(fabric.global_rank))
        fabric.save(folder / "last.ckpt", {"model": model, "optimizer": optimizer, "mine": mine})
        return {name: value.clone() for name, value in model.module.state_dict().items()}

    strategy = DDPStrategy(start_method="fork", **options)
    return Fabric(accelerator="cpu", devices=2, strategy=strategy).launch(body)


def sizes(path):
    return [file.stat().st_size for file in sorted(path.glob("*.data"))]


def test_each_rank_writes_a_half(tmp_path):
    state = save(tmp_path)
    large = 12 * 200 * 200 * 4  # weights and moments
    first, second = sizes(tmp_path / "last.ckpt")
    assert second == large / 2
    assert large / 2 + 400_000 < first < large / 2 + 420_000  # what isn't a parameter is rank 0's
    loaded = load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["mine"].unique().tolist() == [0]
    assert all(torch.equal(loaded["model"][name], value) for name, value in state.items())


def test_ranks_save_together_in_the_background(tmp_path):
    def body(fabric):
        torch.manual_seed(0)
        fabric.save(tmp_path / "last.ckpt", {"model": fabric.setup(nn.Linear(200, 200))})
        fabric.teardown()

    Fabric(accelerator="cpu", devices=2, strategy="ddp_fork", plugins="async").launch(body)
    torch.manual_seed(0)
    assert torch.equal(load_checkpoint(tmp_path / "last.ckpt")["model"]["weight"], nn.Linear(200, 200).weight)


@pytest.mark.parametrize("option", ["a hook", "a wrapper"])
def test_rank_zero_writes_all_where_weights_may_differ(tmp_path, option):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    if option == "a hook":
        save(tmp_path, ddp_comm_hook=fp16_compress_hook)
    else:
        from torch.nn.parallel import DistributedDataParallel

        class Own(DDPStrategy):
            def configure_ddp(self):
                self.model = DistributedDataParallel(self.model)

        fabric = Fabric(accelerator="cpu", devices=2, strategy=Own(start_method="fork"))

        def body(fabric):
            net = nn.Linear(200, 200)
            fabric.save(tmp_path / "last.ckpt", {"model": fabric.setup(net)})

        fabric.launch(body)
    assert len(sizes(tmp_path / "last.ckpt")) == 1
