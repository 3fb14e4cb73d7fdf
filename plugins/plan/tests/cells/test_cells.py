"""What the table of errors stands on: the design of its cells, and what is counted in them."""

import gc

import pytest
import torch
from cells.allocations import Allocations
from cells.design import MODELS, VARIANTS, WORLDS, candidates, design, left_out, pairs, read
from torch import nn

from core_testing.ranks import Backend

MIB = 2**20


def test_the_cells_are_those_that_the_seed_gives():
    assert read() == design()


def test_every_pair_that_can_run_is_in_a_cell():
    covered = {pair for cell in read() for pair in pairs(cell)}
    assert {pair for cell in candidates() for pair in pairs(cell)} == covered
    trained = {(cell.model, cell.strategy) for cell in read()}
    assert trained == {(model, name) for model in MODELS for name in WORLDS if left_out(model, name) is None}
    assert {cell.variant for cell in read()} == set(VARIANTS)
    assert len(set(read())) == 200


def _net():
    return nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False))


def test_allocations_are_those_of_forward_and_backward():
    net, allocations = _net(), Allocations()
    allocations.count(net.parameters())
    assert allocations.live_bytes == 2 * MIB
    with allocations:
        x = torch.randn(1024, 512)
        loss = net(x).square().sum()
        # Parameters, the batch, what ReLU gave, what was squared.
        assert allocations.live_bytes == pytest.approx((2 + 2 + 2 + 2) * MIB, abs=64)
        loss.backward()
        del loss
        gc.collect()
        assert allocations.live_bytes == pytest.approx((2 + 2 + 2) * MIB, abs=64)
        assert allocations.peak_bytes > 10 * MIB
        del x
        net.zero_grad()
        assert allocations.live_bytes == 2 * MIB


def test_a_storage_counts_by_its_newest_size_until_it_is_freed():
    allocations = Allocations()
    with allocations:
        x = torch.empty(MIB, dtype=torch.uint8)
        view = x[5:]
        del x
        assert allocations.live_bytes == MIB
        view.untyped_storage().resize_(0)
        assert allocations.live_bytes == 0
        view.untyped_storage().resize_(3 * MIB)
        assert allocations.live_bytes == 3 * MIB
        del view
        assert allocations.live_bytes == 0
        torch.empty(MIB, device="meta")
    assert allocations.peak_bytes == 3 * MIB
    assert allocations.restart() == (3 * MIB, {})
    assert allocations.peak_bytes == 0


def _under_ddp(rank):
    net, allocations = _net(), Allocations()
    fabric = rank.fabric()
    allocations.count(net.parameters())
    with allocations:
        model, _ = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        live_bytes = allocations.live_bytes
        allocations.restart()
        fabric.backward(model(torch.ones(4, 512)).sum())
    return live_bytes, allocations.sent


def test_buckets_of_ddp_and_what_they_send_are_counted():
    for live_bytes, sent in Backend(lambda: "ddp", num_processes=2).run(_under_ddp):
        assert live_bytes >= (2 + 2) * MIB  # parameters, and the bucket that was made in C++
        assert sent["allreduce"][1] == 2 * MIB
