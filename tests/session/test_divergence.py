"""Ranks that part are found in their first steps, with what differs and the usual causes."""

import copy
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Fabric, Module, ModuleError, ReplicasDifferError
from core_ddp import DDPStrategy
from core_testing import Backend
from core_testing.waiting import slowness

DATA = torch.linspace(-1, 1, 128).reshape(-1, 2)


class Net(Module):
    def __init__(self, batches="own", backward="automatic"):
        super().__init__()
        torch.manual_seed(0)
        self.batches, self.backward_by, self.automatic_optimization = (
            batches,
            backward,
            backward == "automatic",
        )
        self.net = nn.Sequential(
            nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1)
        )
        self.register_buffer("seen", torch.zeros(2), persistent=batches != "own, not saved")

    def training_step(self, batch):
        load = batch.sum(0)
        if self.batches == "of all ranks":
            load = self.trainer.strategy.reduce(load, reduce_op="sum")
        if self.batches != "none":
            self.seen = self.seen + load
        loss = self.net(batch).square().mean()
        if self.automatic_optimization:
            return loss
        loss.backward() if self.backward_by == "backward" else self.manual_backward(loss)
        self.optimizers().step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(rank, *arguments, ignored=()):
    net = Net(*arguments)
    net._ddp_params_and_buffers_to_ignore = ignored
    trainer = rank.trainer(max_epochs=1)
    try:
        trainer.fit(net, DataLoader(DATA, batch_size=8))
    except ReplicasDifferError as error:
        return trainer.global_step, str(error)
    return trainer.global_step, None


def run(make, function, *arguments, **options):
    strategy = make if callable(make) else lambda: make
    return Backend(strategy, num_processes=2, in_process=True).run(
        partial(function, **options), *arguments
    )


def test_a_loss_that_ddp_does_not_see_is_found():
    for step, error in run("ddp", fit, "none", "backward"):
        assert step <= 1
        assert error.startswith(
            "After step 1 ranks 0, 1 differ from each other, and no majority says which"
        )
        assert "isn't alike is the parameter 'net.0.weight'" in error
        assert "loss.backward() in manual optimization, for self.manual_backward(loss)" in error


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "parallel"])
def test_a_buffer_that_follows_a_ranks_batches_is_named_with_the_cure(strategy):
    for step, error in run(strategy, fit):
        assert step <= 1
        assert "isn't alike is the buffer 'seen'" in error
        assert 'self.trainer.strategy.reduce(load, reduce_op="sum")' in error
        assert "persistent=False" in error


@pytest.mark.parametrize(
    ("strategy", "batches", "ignored"),
    [
        ("ddp", "none", ()),
        ("ddp", "own, not saved", ()),
        ("ddp", "own", ["seen"]),
        (partial(DDPStrategy, forward_sync_buffers=False), "own", ()),
        ("fsdp", "of all ranks", ()),
        ("parallel", "of all ranks", ()),
    ],
)
@pytest.mark.parametrize("backward", ["automatic", "manual_backward"])
def test_what_ranks_may_have_for_themselves_is_left_alone(strategy, batches, ignored, backward):
    assert run(strategy, fit, batches, backward, ignored=ignored) == [(4, None)] * 2


def train(rank, how):
    torch.manual_seed(0)
    fabric = rank.fabric()
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    if how == "another rate":
        optimizer.param_groups[0]["lr"] *= 1 + fabric.global_rank
    ema = copy.deepcopy(model)
    try:
        for batch in fabric.setup_dataloaders(DataLoader(DATA, batch_size=8)):
            ema(batch)
            output = module[0](batch) if how == "a layer" else model(batch)
            fabric.backward(output.square().mean())
            if how != "skips" or fabric.global_rank == 0:
                optimizer.step()
            optimizer.zero_grad()
    except Exception as error:  # also the lost connection, on a rank that has left its steps out
        return str(error)
    finally:
        fabric.teardown()


@pytest.mark.parametrize(
    ("how", "tensor", "cause"),
    [
        ("a layer", "the parameter '0.0.weight'", "or from one of its layers"),
        (
            "another rate",
            "'lr' of optimizer 0, SGD",
            "from no rank's own loss, and not from its number",
        ),
    ],
)
def test_fabrics_own_loops_are_watched(how, tensor, cause):
    for error in run("ddp", train, how):
        assert f"the first tensor that isn't alike is {tensor}" in error
        assert cause in error


def test_a_loop_whose_ranks_stay_alike_goes_on():
    assert run("ddp", train, "right") == [None, None]


def test_a_rank_that_leaves_out_steps_ends_the_run():
    """And makes no collective of the others' wait for it."""
    timeout = timedelta(seconds=6 * slowness())
    found = Backend(lambda: DDPStrategy(timeout=timeout), num_processes=2).run(train, "skips")
    assert (
        "Rank 0 has made 1 optimizer steps, and these ranks haven't come to that: 1. All make the "
        "same" in found[0]
    )


@pytest.mark.parametrize(("num_steps", "expected"), [(9, 4), (2100, 12)])
def test_ranks_are_compared_at_powers_of_two(num_steps, expected):
    def num_compared(rank):
        fabric, layer = rank.fabric(), nn.Linear(1, 1)
        kept, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters()))
        with patch.object(
            fabric.strategy, "all_gather", wraps=fabric.strategy.all_gather
        ) as gather:
            for _ in range(num_steps):
                optimizer.step()
        return kept and gather.call_count

    assert run("ddp", num_compared) == [expected] * 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_module_of_setup_that_nobody_keeps_is_an_error_in_the_first_step(keeps):
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    kept = fabric.setup(layer, optimizer) if keeps else bool(fabric.setup(layer, optimizer))
    # legal: a copy, a functional call or a loss on a layer may do so too
    layer(torch.ones(1, 1)).sum().backward()
    if keeps:
        optimizer.step()
        return
    with pytest.raises(
        ModuleError,
        match=r"^Nothing has kept what fabric\.setup returned: the Linear that you made",
    ):
        optimizer.step()
    assert kept
