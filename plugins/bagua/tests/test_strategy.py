"""Bytes that each algorithm sends, in real processes over gloo, agreement, and refusals."""

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
from core_testing.ranks import end_kept_ranks

TWO = Backend(lambda: "single_device", num_processes=2, kept_for=__name__)
NUM_ELEMENTS = 64 * 32 + 32 + 32 * 10 + 10
HEADER = 16  # of float64: the smallest value, and the distance of two levels
# Of one rank of two, and one step. An all-reduce of n ranks sends 2 (n - 1) / n of the message.
WIDTH = NUM_ELEMENTS // 2
ALGORITHMS = {
    "gradient_allreduce": (NUM_ELEMENTS * 8, {}),
    "bytegrad": (2 * (WIDTH + HEADER), {}),
    "qadam": (2 * (WIDTH + HEADER), {}),
    "decentralized": (NUM_ELEMENTS * 8, {}),
    "shift_one": (
        NUM_ELEMENTS * 8,
        {"algorithm": "decentralized", "peer_selection_mode": "shift_one"},
    ),
    "low_precision_decentralized": (NUM_ELEMENTS + HEADER, {}),
    # Each of four tensors with a header of its own.
    "apart": (2 * (WIDTH + 4 * HEADER), {"algorithm": "bytegrad", "flatten": False}),
}


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_bytes_sent_are_those_of_the_theory(name):
    """The kernel counts them; gloo adds a preamble to each message."""

    def bytes_sent():
        """By all TCP connections of this process, as the kernel counts them in `struct tcp_info`.

        `tcpi_bytes_sent` at byte 200 counts what was sent again too, which `tcpi_bytes_retrans`
        after it has: a busy machine acknowledges late, even on loopback.
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

    def sent_in_a_step(rank, name):
        """Bytes in the last of twelve steps, and the weights then."""
        fabric = rank.fabric(BaguaStrategy(**{"algorithm": name, **ALGORITHMS[name][1]}))
        module = make_model()
        parameters = module.parameters()
        kind = (
            QAdamOptimizer(parameters, 2e-3, 10)
            if name == "qadam"
            else torch.optim.SGD(parameters, lr=0.02)
        )
        model, optimizer = fabric.setup(module, kind)
        for step in range(12):
            inputs = torch.randn(
                8, 64, generator=torch.Generator().manual_seed(2 * step + rank.number)
            ).double()
            before = bytes_sent()
            fabric.backward(model(inputs).square().mean())
            optimizer.step()
            sent = bytes_sent() - before
            optimizer.zero_grad()
        fabric.strategy.synchronize_model()
        weights = [parameter.detach().clone() for parameter in module.parameters()]
        fabric.teardown()
        return sent, weights

    (first, weights), (second, others) = TWO.run(sent_in_a_step, name)
    for sent in (first, second):
        assert (
            ALGORITHMS[name][0] <= sent <= ALGORITHMS[name][0] + 640 * (4 if name == "apart" else 1)
        )
    torch.testing.assert_close(weights, others, rtol=0, atol=0)


def refused(rank):
    """The error of modules of which each rank has another one."""
    fabric = rank.fabric(BaguaStrategy("bytegrad"))
    with pytest.raises(ModuleError) as error:
        fabric.setup_module(nn.Linear(4, 1 + rank.number))
    fabric.teardown()
    return str(error.value)


def test_modules_that_differ_are_refused():
    named = "'weight', (1, 4) float32 on rank 0\n  'weight', (2, 4) float32 on rank 1"
    assert named in TWO.run(refused)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"algorithm": "decentralized"}, 1),
        ({"algorithm": "decentralized", "peer_selection_mode": "shift_one"}, 3),
        ({"algorithm": "low_precision_decentralized"}, 24),
    ],
)
def test_four_ranks_agree_after_the_stated_rounds(options, rounds):
    """Everybody's mean in one, two rounds of pairs, and on a ring a third of the distance a
    round.
    """

    def weights_in_rounds(rank, options, rounds):
        """The largest distance of any rank's weights from their mean: at first, and after some
        rounds without change.
        """
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

    for distances in Backend(lambda: "single_device", num_processes=4).run(
        weights_in_rounds, options, rounds
    ):
        assert distances[-1] <= 1e-9
        assert len(distances) == 1 or distances[0] > 1e-3


@pytest.mark.parametrize("size", [2, 4, 8])
def test_each_round_pairs_every_rank_of_one_half_with_another_of_the_other(size):
    for number in range(2 * size):
        assert [peer_of(peer_of(rank, size, number), size, number) for rank in range(size)] == list(
            range(size)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "bytegrab"},
            r"algorithm='bytegrab'\): expected one of 'gradient_allreduce'.* Did you mean "
            r"'bytegrad'",
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
        (
            {"algorithm": "decentralized", "peer_selection_mode": "shift_one"},
            3,
            None,
            "pairs ranks, and there are 3",
        ),
        (
            {"algorithm": "decentralized", "peer_selection_mode": "ring"},
            2,
            None,
            "expected one of 'all', 'shift_one'",
        ),
        (
            {"algorithm": "low_precision_decentralized", "communication_interval": 0},
            2,
            None,
            "number of steps from 1",
        ),
        (
            {"algorithm": "async", "sync_interval_ms": -1},
            2,
            None,
            "sync_interval_ms=-1: expected a number from 0",
        ),
    ],
)
def test_what_can_not_work_is_refused_before_work(options, devices, precision, message):
    with pytest.raises(ConfigurationError, match=message):
        Trainer(
            strategy=BaguaStrategy(**options),
            accelerator="cpu",
            devices=devices,
            precision=precision,
        )


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
    assert (
        "got Adam: it exchanges momenta of an optimizer of its own. Return "
        "core_bagua.QAdamOptimizer(" in optimizer
    )
    assert (
        "kept for algorithm='async', and this is BaguaStrategy(algorithm='bytegrad')" in checkpoint
    )


def test_q_adam_is_adam_while_it_warms_up():
    ours, theirs = make_model(), make_model()
    optimizers = [
        QAdamOptimizer(ours.parameters(), 1e-2, 8),
        torch.optim.Adam(theirs.parameters(), 1e-2),
    ]
    for _ in range(5):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(torch.ones(3, 64, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours[0].weight, theirs[0].weight, rtol=1e-9, atol=1e-12)


def test_q_adam_needs_a_warm_up():
    with pytest.raises(
        ConfigurationError, match=r"warmup_steps=0\): expected a number of steps from 1"
    ):
        QAdamOptimizer([nn.Parameter(torch.zeros(1))], warmup_steps=0)
