"""Stops on GPUs: ranks agree in their devices' queues, which nobody drains between steps."""

import signal
from types import SimpleNamespace

import pytest
import torch

from core_training.loops.stop_agreement import StopAgreement
from core_training.signals import exchange_interval
from support.late_cuda import CUDA, MAIN_LATE, late, simulate

GPU = torch.device("cuda", 0)


def use_late_gpu(monkeypatch):
    """Let tensors that go to the GPU be late ones, and no memory be locked."""
    simulate(monkeypatch, MAIN_LATE)
    make, to = torch.tensor, torch.Tensor.to

    def make_there(data, device=None):
        return late(make(data)) if device == GPU else make(data)

    def move(self, *args, **options):
        return late(self) if args == (GPU,) else to(self, *args, **options)

    monkeypatch.setattr(torch, "tensor", make_there)
    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


class TwoRanks:
    """A strategy whose other rank asks for nothing, or for what `other` says when the device comes
    to it.
    """

    root_device = GPU

    def __init__(self):
        self.other = [0, 0, 0, -64]

    def reduce(self, tensor, reduce_op):
        result = late(tensor)
        others = self.other
        CUDA.now.enqueue(
            lambda: plain(result).copy_(torch.maximum(plain(tensor), torch.tensor(others)))
        )
        return result


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


@pytest.fixture
def run(monkeypatch):
    use_late_gpu(monkeypatch)
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(exchange_interval, "time", clock)
    guard = SimpleNamespace(signal=None, agree=lambda number: KeyboardInterrupt(number))
    return SimpleNamespace(
        session=SimpleNamespace(has_peers=True),
        signals=guard,
        options=SimpleNamespace(max_time=None),
        strategy=TwoRanks(),
        should_stop=False,
        progress=SimpleNamespace(elapsed_s=0.0),
        clock=clock,
    )


def train(run, stops, num_looks, step_s=0.01):
    """Steps up to as many looks; how many steps the device has done at each, and how many it had
    been given.
    """
    batch, seen, done = 0, [], []
    stops.begin(0)
    while len(seen) < num_looks:
        CUDA.now.enqueue(lambda: done.append(1))
        batch += 1
        run.clock.now_s += step_s
        if batch >= stops.look_at:
            stops.look(batch)
            seen.append((len(done), batch))
    return seen


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [(0.001, [1, 3, 7, 15, 31, 63]), (0.0625, [1, 3, 7, 15, 23, 31, 39]), (2.0, [1, 2, 3, 4, 5])],
)
def test_ranks_talk_twice_a_second_and_not_at_each_step(run, step_s, expected):
    run.strategy = SimpleNamespace(
        root_device=torch.device("cpu"), reduce=lambda tensor, reduce_op: tensor
    )
    looks = train(run, StopAgreement(run), len(expected), step_s)
    assert [given for _, given in looks] == expected


def test_a_look_waits_for_no_step_since_the_look_before(run):
    looks = train(run, StopAgreement(run), 6)
    queued = looks[1:]
    assert queued
    for (_, given_before), (done, given) in zip(looks, queued, strict=False):
        assert done <= given_before < given


def test_a_wish_of_another_rank_is_known_one_look_later(run):
    stops = StopAgreement(run)
    train(run, stops, 3)
    run.strategy.other = [1, 1, 0, -64]
    stops.look(100)
    assert (stops.is_asked, stops.is_late, run.should_stop) == (False, False, False)
    stops.look(200)
    assert (stops.is_asked, stops.is_late, run.should_stop) == (True, True, True)


def test_an_own_wish_counts_once_all_ranks_know_it_and_can_be_taken_back(run):
    stops = StopAgreement(run)
    train(run, stops, 3)
    run.should_stop = True
    stops.look(100)
    assert (stops.is_asked, run.should_stop) == (False, True)
    run.should_stop = False
    stops.look(200)
    stops.look(300)
    assert (stops.is_asked, run.should_stop) == (False, False)


def test_a_signal_is_raised_at_the_look_after_it(run):
    stops = StopAgreement(run)
    train(run, stops, 3)
    run.strategy.other = [0, 0, signal.SIGINT, -64]
    stops.look(100)
    with pytest.raises(KeyboardInterrupt):
        stops.look(200)


def test_before_and_after_what_is_no_step_ranks_know_at_once(run):
    stops = StopAgreement(run)
    train(run, stops, 3)
    stops.look(100)  # its answer is older than that of `agree`
    run.strategy.other = [1, 0, 0, -64]
    stops.agree(200)
    assert stops.is_asked
    run.strategy.other = [0, 0, 0, -64]
    run.should_stop = False
    stops.agree(300)
    stops.look(400)
    assert not stops.is_asked


def test_ranks_whose_steps_take_half_a_second_know_after_the_step(run):
    stops = StopAgreement(run)
    train(run, stops, 4, step_s=2.0)
    run.strategy.other = [1, 0, 0, -64]
    stops.look(5)
    assert stops.is_asked
