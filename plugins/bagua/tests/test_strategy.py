"""The promises of each algorithm, in real processes over gloo: equality, convergence, agreement, and bytes sent."""

import importlib
import os
import socket
import stat
import struct

import pytest
import torch
from torch import nn

from core import CheckpointError, ConfigurationError, ModuleError, Trainer
from core_bagua import BaguaStrategy, QAdamOptimizer
from core_bagua.decentralized import peer_of
from core_testing import Backend

TWO = Backend(lambda: "single_device", num_processes=2, timeout_s=200)
NUM_ELEMENTS = 64 * 32 + 32 + 32 * 10 + 10
HEADER = 16  # of float64: the smallest value, and the distance of two levels
DIGITS = {
    "gradient_allreduce": {},
    "bytegrad": {},
    "qadam": {},
    "decentralized": {},
    "shift_one": {"algorithm": "decentralized", "peer_selection_mode": "shift_one"},
    "low_precision_decentralized": {},
    "async": {"sync_interval_ms": 0},
}
# Of one rank of two, and one step. An all-reduce of n ranks sends 2 (n - 1) / n of the message.
WIDTH = NUM_ELEMENTS // 2
BYTES = {
    "gradient_allreduce": NUM_ELEMENTS * 8,
    "bytegrad": 2 * (WIDTH + HEADER),
    "qadam": 2 * (WIDTH + HEADER),
    "decentralized": NUM_ELEMENTS * 8,
    "shift_one": NUM_ELEMENTS * 8,
    "low_precision_decentralized": NUM_ELEMENTS + HEADER,
}


def strategy_of(name, **options):
    return BaguaStrategy(**{"algorithm": name, **DIGITS.get(name, {}), **options})


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


def bytes_sent():
    """By all TCP connections of this process, as the kernel counts them in `struct tcp_info`.

    `tcpi_bytes_sent` at byte 200 counts what was sent again too, which `tcpi_bytes_retrans` after it has: a busy
    machine acknowledges late, even on loopback.
    """
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(number))) as one:
                if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    sent, sent_again = struct.unpack_from("QQ", info, 200)
                    total += sent - sent_again
        except OSError:  # closed since, or not connected
            continue
    return total


def train(fabric, num_steps, *, lr=0.02, is_settled=False):
    """SGD on the digits in float64; the loss on all of them afterwards, weights, and bytes sent in the last steps."""
    from sklearn.datasets import load_digits  # seconds, which every process that collects would spend

    module = make_model()
    algorithm = getattr(fabric.strategy, "algorithm", None)
    kind = QAdamOptimizer(module.parameters(), 2e-3, 10) if algorithm == "qadam" else None
    model, optimizer = fabric.setup(module, kind or torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9))
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(2))
    counted = 0
    for step in range(num_steps):
        batch = order[torch.arange(step * 64, step * 64 + 64) % len(order)]
        share = batch[fabric.global_rank :: fabric.world_size]
        before = bytes_sent()
        fabric.backward(nn.functional.cross_entropy(model(inputs[share]), targets[share]))
        optimizer.step()
        counted = bytes_sent() - before
        optimizer.zero_grad()
    if is_settled:
        fabric.strategy.synchronize_model()
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(inputs), targets).item()
    fabric.teardown()
    return weights, loss, counted


def refused(fabric):
    """The error of modules of which each rank has another one."""
    with pytest.raises(ModuleError) as error:
        fabric.setup_module(nn.Linear(4, 1 + fabric.global_rank))
    fabric.teardown()
    return str(error.value)


def train_all(rank, names):
    found = {name: train(rank.fabric(strategy_of(name)), 150, is_settled=True) for name in names}
    return found | {
        "ddp": train(rank.fabric("ddp"), 150),
        "apart": train(rank.fabric(strategy_of("bytegrad", flatten=False)), 150),
        "refused": refused(rank.fabric(strategy_of("bytegrad"))),
    }


@pytest.fixture(scope="module")
def digits():
    """The results of two ranks, and of one device alone."""
    importlib.import_module("sklearn.datasets")  # here once, and not in each rank
    one = Backend(lambda: "single_device").run(lambda rank: train(rank.fabric(), 150))[0]
    return TWO.run(train_all, list(DIGITS)), one


@pytest.mark.slow
def test_full_precision_equals_ddp(digits):
    for rank in digits[0]:
        torch.testing.assert_close(rank["gradient_allreduce"][0], rank["ddp"][0], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIGITS)
def test_it_learns_the_digits_about_as_one_device_does(digits, name):
    (first, second), (_, loss, _) = digits
    # How often ranks are averaged in the background depends on how busy the machine is.
    assert first[name][1] <= loss * (1.5 if name == "async" else 1.1)
    assert torch.equal(first[name][0], second[name][0])


@pytest.mark.slow
@pytest.mark.parametrize("name", BYTES)
def test_bytes_sent_are_those_of_the_theory(digits, name):
    """The kernel counts them; gloo adds a preamble to each message."""
    for rank in digits[0]:
        assert BYTES[name] <= rank[name][2] <= BYTES[name] + 640


@pytest.mark.slow
def test_modules_that_differ_are_refused(digits):
    for rank in digits[0]:
        assert "'bias': (1,) float32 on rank 0; (2,) float32 on rank 1" in rank["refused"]


@pytest.mark.slow
def test_tensors_may_travel_apart(digits):
    """Each with a header of its own, and so with a distance of two levels of its own."""
    (first, second), (_, loss, _) = digits
    assert torch.equal(first["apart"][0], second["apart"][0])
    assert first["apart"][1] <= loss * 1.1


def weights_in_rounds(rank, options, rounds):
    """The largest distance of any rank's weights from their mean: at first, and after some rounds without change."""
    fabric, module = rank.fabric(BaguaStrategy(**options)), make_model()
    _, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.0))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    weight = module[0].weight.data
    weight += fabric.global_rank + torch.arange(64) * fabric.global_rank**2
    mean = fabric.all_reduce(weight)
    distances = []
    for _ in range(rounds):
        optimizer.step()
        distances.append((weight - mean).abs().max().item() / mean.abs().max().item())
    fabric.teardown()
    return distances


@pytest.mark.slow
def test_four_ranks_agree_after_the_stated_rounds():
    """Everybody's mean in one, two rounds of pairs, and on a ring a third of the distance a round."""
    four = Backend(lambda: "single_device", num_processes=4, timeout_s=200)
    stated = [
        ({"algorithm": "decentralized"}, 1),
        ({"algorithm": "decentralized", "peer_selection_mode": "shift_one"}, 3),
        ({"algorithm": "low_precision_decentralized"}, 24),
    ]
    for options, rounds in stated:
        for distances in four.run(weights_in_rounds, options, rounds):
            assert distances[-1] <= 1e-9
            assert len(distances) == 1 or distances[0] > 1e-3


def test_each_round_pairs_every_rank_of_one_half_with_another_of_the_other():
    for size in (2, 4, 8):
        for number in range(2 * size):
            assert [peer_of(peer_of(rank, size, number), size, number) for rank in range(size)] == list(range(size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "bytegrab"},
            r"algorithm='bytegrab'\): expected one of 'gradient_allreduce'.* Did you mean 'bytegrad'",
        ),
        (
            {"communication_interval": 2},
            "no option 'communication_interval', which is one of 'decentralized', 'low_",
        ),
        ({"algorithm": "qadam", "warmup_steps": 9}, "It is an option of core_bagua.QAdamOptimizer"),
        ({"hierarchical": True}, "hierarchical"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((ConfigurationError, TypeError), match=message):
        BaguaStrategy(**options)


@pytest.mark.parametrize(
    ("options", "devices", "precision", "message"),
    [
        ({"algorithm": "decentralized", "peer_selection_mode": "shift_one"}, 3, None, "pairs ranks, and there are 3"),
        ({"algorithm": "decentralized", "peer_selection_mode": "ring"}, 2, None, "expected one of 'all', 'shift_one'"),
        ({"algorithm": "low_precision_decentralized", "communication_interval": 0}, 2, None, "number of steps from 1"),
        ({"algorithm": "async", "sync_interval_ms": -1}, 2, None, "sync_interval_ms=-1: expected a number from 0"),
    ],
)
def test_what_can_not_work_is_refused_before_work(options, devices, precision, message):
    with pytest.raises(ConfigurationError, match=message):
        Trainer(strategy=BaguaStrategy(**options), accelerator="cpu", devices=devices, precision=precision)


def refusals(rank):
    module = nn.Linear(2, 1)
    fabric = rank.fabric(BaguaStrategy("qadam"))
    with pytest.raises(ConfigurationError) as refused:
        fabric.setup(module, torch.optim.Adam(module.parameters()))
    fabric.teardown()
    strategy = BaguaStrategy("bytegrad")
    with pytest.raises(CheckpointError) as unfit:
        strategy.load_rank_state_dict({"algorithm": "async", "num_steps": 1})
    return str(refused.value), str(unfit.value)


def test_errors_name_the_cure():
    optimizer, checkpoint = Backend(lambda: "single_device").run(refusals)[0]
    assert "got Adam: it exchanges momenta of an optimizer of its own. Return core_bagua.QAdamOptimizer(" in optimizer
    assert "kept for algorithm='async', and this is BaguaStrategy(algorithm='bytegrad')" in checkpoint


def test_q_adam_is_adam_while_it_warms_up():
    ours, theirs = make_model(), make_model()
    optimizers = [QAdamOptimizer(ours.parameters(), 1e-2, 8), torch.optim.Adam(theirs.parameters(), 1e-2)]
    for _ in range(5):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(torch.ones(3, 64, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours[0].weight, theirs[0].weight, rtol=1e-9, atol=1e-12)


def test_q_adam_needs_a_warm_up():
    with pytest.raises(ConfigurationError, match=r"warmup_steps=0\): expected a number of steps from 1"):
        QAdamOptimizer([nn.Parameter(torch.zeros(1))], warmup_steps=0)
