"""A checkpoint of one strategy resumes under another: losses equal those of one uninterrupted run."""

import functools

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from core import Callback, Fabric
from core.checkpoint import load_checkpoint
from core_fsdp import FSDPStrategy, ModelParallelStrategy
from core_testing import Backend
from core_testing.ranks import end_kept_ranks
from support.sharded_training import CASES, Block, Net, Recorder, WholeWeights, make_loader

NUM_STEPS, HALF = 8, 4
CASE = CASES["tied"]
units = {"start_method": "fork", "auto_wrap_policy": {Block}}

WAYS = {
    "single_device": (lambda: "single_device", 1, 1),
    "ddp": (lambda: "ddp_fork", 2, 2),
    "fsdp": (lambda: FSDPStrategy(**units), 2, 2),
    "tensor": (lambda: ModelParallelStrategy(**units, tensor_parallel_size=2), 2, 1),
}


class SteppedNet(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95), "interval": "step"}]


def fit(way, max_steps, ckpt_path=None, storage=None, save_to=None):
    """Losses and whole weights."""
    return ranks_of(way).run(fit_on, max_steps, ckpt_path, storage, save_to)[0]


def ranks_of(way):
    """They stay for the next run in this way."""
    make, devices, data_parallel_size = WAYS[way]
    return Backend(make, "cpu", devices, data_parallel_size, kept_for=(__name__, way))


def fit_on(rank, max_steps, ckpt_path, storage, save_to):
    torch.manual_seed(11)
    module, recorder, whole = SteppedNet(CASE), Recorder(), WholeWeights()
    options = {"precision": "64-true", "max_epochs": 1, "max_steps": max_steps}
    plugins = [rank.environment, *filter(None, [storage])]
    trainer = rank.trainer(**options, plugins=plugins, callbacks=[recorder, Saver(save_to), whole])
    trainer.fit(module, make_loader(rank.backend.data_parallel_size, NUM_STEPS), ckpt_path=ckpt_path)
    return recorder.losses, whole.weights


class Saver(Callback):
    """Saves on every rank, when the last step has been made."""

    def __init__(self, path):
        self.path = path

    def on_train_end(self, trainer, module):
        if self.path is not None:
            trainer.save_checkpoint(self.path)


@functools.cache
def uninterrupted(way):
    return fit(way, -1)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    @functools.cache
    def save(way, storage):
        path = tmp_path_factory.mktemp(way) / "half.ckpt"
        return path, fit(way, HALF, storage=storage, save_to=path)[0]

    return save


# A folder that every rank writes its shards into, and one file of whole tensors.
PAIRS = [("distributed", writer, reader) for writer in WAYS for reader in WAYS]
PAIRS += [("torch", "fsdp", reader) for reader in WAYS] + [("torch", writer, "fsdp") for writer in ("ddp", "tensor")]
# What shares nearly all calls with another pair isn't among the quick tests.
QUICK = {("distributed", writer, "fsdp") for writer in WAYS} | {("distributed", "fsdp", reader) for reader in WAYS}
QUICK |= {("distributed", "tensor", "tensor"), ("torch", "fsdp", "single_device")}


@pytest.mark.parametrize(
    ("storage", "writer", "reader"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_a_run_goes_on_under_another_strategy(saved, storage, writer, reader):
    path, first_losses = saved(writer, storage)
    losses, weights = fit(reader, -1, path, storage)
    expected_losses, expected_weights = uninterrupted("single_device")
    scale = max(value.abs().max().item() for value in expected_weights.values())
    # The recorder's own losses are restored with it, so the second run has all of them.
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert losses[:HALF] == first_losses
    for name, expected in expected_weights.items():
        assert (weights[name] - expected).abs().max().item() <= 1e-10 * scale, name
    if writer == reader:
        assert losses == uninterrupted(reader)[0]  # bit for bit


@pytest.mark.parametrize("writer", ["ddp", "fsdp", "tensor"])
def test_a_file_looks_the_same_whoever_wrote_it(tmp_path, writer):
    def states(way):
        fit(way, 3, storage="torch", save_to=tmp_path / f"{way}.ckpt")
        return torch.load(tmp_path / f"{way}.ckpt", weights_only=True)

    expected, found = states("single_device"), states(writer)
    assert list(expected["model"]) == list(found["model"])
    assert found["model"]["head.weight"].data_ptr() == found["model"]["embedding.weight"].data_ptr()
    ours, theirs = expected["optimizers"][0]["state"], found["optimizers"][0]["state"]
    assert ours.keys() == theirs.keys()
    for name, entry in ours.items():
        assert entry.keys() == theirs[name].keys()
        for key, value in entry.items():
            torch.testing.assert_close(theirs[name][key], value, rtol=1e-8, atol=1e-12)


def save_common(rank, path):
    fabric = rank.fabric()
    fabric.barrier()
    shares = fabric.strategy.device_mesh["data_parallel"]
    fabric.save(path, {name: distribute_tensor(torch.arange(3.0), shares, [Shard(0)]) for name in ("one", "other")})


def test_what_a_tensor_group_has_in_common_is_written_once_and_by_turns(tmp_path):
    path = tmp_path / "common.ckpt"
    ranks_of("tensor").run(save_common, path)
    loaded = load_checkpoint(path)
    assert loaded["one"].tolist() == loaded["other"].tolist() == [0, 1, 2]
    assert len(list(path.glob("*.data"))) == 2


def trained(fabric):
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 400)
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    fabric.backward(model(torch.ones(2, 300)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


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


def test_shards_and_their_moments_are_filled_where_they_are(tmp_path):
    """From what two ranks have saved, and from what one process has."""
    halves, whole, alone = tmp_path / "halves.ckpt", tmp_path / "whole.ckpt", Fabric(accelerator="cpu")
    alone.save(whole, trained(alone))
    assert ranks_of("fsdp").run(load_in_place, halves, whole) == [[True, True]] * 2
