"""What ranks write of shards: a file that looks the same whoever wrote it, each thing once, and
loads in place.
"""

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from core import Fabric
from core.checkpoint import load_checkpoint
from core_fsdp import FSDPStrategy, ModelParallelStrategy
from core_testing import Backend
from core_testing.ranks import end_kept_ranks
from support.sharded_training import CASES, Block, Net, make_loader
from support.small_nets import At

units = {"start_method": "fork", "auto_wrap_policy": {Block}}

WAYS = {
    "single_device": (lambda: "single_device", 1, 1),
    "ddp": (lambda: "ddp_fork", 2, 2),
    "fsdp": (lambda: FSDPStrategy(**units), 2, 2),
    "tensor": (lambda: ModelParallelStrategy(**units, tensor_parallel_size=2), 2, 1),
}


def ranks_of(way):
    """They stay for the next run in this way."""
    make, devices, data_parallel_size = WAYS[way]
    return Backend(make, "cpu", devices, data_parallel_size, kept_for=(__name__, way))


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


@pytest.mark.parametrize("writer", ["ddp", "fsdp", "tensor"])
def test_a_file_looks_the_same_whoever_wrote_it(tmp_path, writer):
    def fit_and_save(rank, path):
        """One file, of three steps."""
        torch.manual_seed(11)
        saves = At("on_train_end", lambda module: module.trainer.save_checkpoint(path))
        options = {
            "precision": "64-true",
            "max_steps": 3,
            "plugins": [rank.environment, "torch"],
            "callbacks": saves,
        }
        rank.trainer(**options).fit(
            Net(CASES["tied"]), make_loader(rank.backend.data_parallel_size)
        )

    for way in ("single_device", writer):
        ranks_of(way).run(fit_and_save, tmp_path / way)
    expected, found = (
        torch.load(tmp_path / way, weights_only=True) for way in ("single_device", writer)
    )
    assert list(expected["model"]) == list(found["model"])
    assert found["model"]["head.weight"].data_ptr() == found["model"]["embedding.weight"].data_ptr()
    ours, theirs = expected["optimizers"][0]["state"], found["optimizers"][0]["state"]
    assert ours.keys() == theirs.keys()
    for name, entry in ours.items():
        assert entry.keys() == theirs[name].keys()
        for key, value in entry.items():
            torch.testing.assert_close(theirs[name][key], value, rtol=1e-8, atol=1e-12)


def test_what_a_tensor_group_has_in_common_is_written_once_and_by_turns(tmp_path):
    path = tmp_path / "common.ckpt"

    def save_common(rank, path):
        fabric = rank.fabric()
        fabric.barrier()
        shares = fabric.strategy.device_mesh["data_parallel"]
        fabric.save(
            path,
            {
                name: distribute_tensor(torch.arange(3.0), shares, [Shard(0)])
                for name in ("one", "other")
            },
        )

    ranks_of("tensor").run(save_common, path)
    loaded = load_checkpoint(path)
    assert loaded["one"].tolist() == loaded["other"].tolist() == [0, 1, 2]
    assert len(list(path.glob("*.data"))) == 2


def test_shards_and_their_moments_are_filled_where_they_are(tmp_path):
    """From what two ranks have saved, and from what one process has."""
    halves, whole, alone = (
        tmp_path / "halves.ckpt",
        tmp_path / "whole.ckpt",
        Fabric(accelerator="cpu"),
    )

    def trained(fabric):
        torch.manual_seed(0)
        model = torch.nn.Linear(300, 400)
        model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
        fabric.backward(model(torch.ones(2, 300)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        return {"model": model, "optimizer": optimizer}

    alone.save(whole, trained(alone))

    def moments_of(state):
        entries = state["optimizer"].optimizer.state.values()
        return [entry[key] for entry in entries for key in ("exp_avg", "exp_avg_sq")]

    def load_in_place(rank, halves, whole):
        """True for each of two checkpoints that has filled what had been set to zero."""
        fabric = rank.fabric("fsdp")
        state = trained(fabric)
        fabric.save(halves, state)
        moments, found = moments_of(state), []
        parts = [tensor.detach().to_local() for tensor in (*state["model"].parameters(), *moments)]
        expected = [part.clone() for part in parts]
        for path in (halves, whole):
            torch._foreach_zero_(parts)
            fabric.load(path, state)
            found.append(all(map(torch.equal, parts, expected)))
        assert all(one is other for one, other in zip(moments, moments_of(state), strict=True))
        return found

    assert ranks_of("fsdp").run(load_in_place, halves, whole) == [[True, True]] * 2
