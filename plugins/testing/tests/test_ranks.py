"""Ranks that are kept from test to test: each test finds them as new, and one that ends them ends
them alone.
"""

import os
import random
import signal
import tempfile
import threading
import time
import warnings
from dataclasses import replace

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from core import STRATEGY_REGISTRY, WorkerError
from core.strategies import ParallelStrategy
from core_testing import Backend, StrategySmoke
from core_testing.packaging import PackagingTests
from core_testing.ranks import end_kept_ranks
from core_testing.strategy.unity import UnityTests


@pytest.fixture
def backend():
    yield Backend(
        ParallelStrategy, num_processes=2, data_parallel_size=2, timeout_s=30, kept_for=__name__
    )
    end_kept_ranks()


def pid(rank):
    return os.getpid()


def meet_and_look(rank):
    """Where this rank is, after it has met the others."""
    has_group = dist.is_initialized()
    fabric = rank.fabric()
    total = fabric.all_reduce(torch.ones(()), reduce_op="sum").item()
    fabric.teardown()
    return os.getpid(), {
        "total": total,
        "group": has_group,
        "variable": os.environ.get("LEFT_BY_A_TEST"),
        "folder": os.getcwd(),
        "temporary folder": tempfile.gettempdir(),
        "filters": [*warnings.filters],
        "random numbers": (random.random(), numpy.random.rand(), torch.rand(()).item()),
        "dtype": torch.get_default_dtype(),
        "device": torch.empty(0).device,
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "handler": signal.getsignal(signal.SIGUSR1),
    }


def leave_all_behind(rank, folder):
    fabric = rank.fabric()
    fabric.barrier()
    os.environ["LEFT_BY_A_TEST"] = "1"
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    return os.getpid(), dist.is_initialized()


def test_a_test_finds_ranks_as_if_they_were_new(backend, tmp_path):
    first = backend.run(meet_and_look)
    left = backend.run(leave_all_behind, tmp_path)
    assert backend.run(meet_and_look) == first  # in the same processes
    assert left == [(process, True) for process, _ in first]
    new = Backend(ParallelStrategy, num_processes=2, data_parallel_size=2).run(meet_and_look)
    assert [found for _, found in new] == [found for _, found in first]
    assert {process for process, _ in new}.isdisjoint(process for process, _ in first)


def test_a_test_finds_what_this_process_is_set_to(backend, tmp_path, monkeypatch):
    processes = backend.run(pid)
    monkeypatch.setenv("LEFT_BY_A_TEST", "2")
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    torch.manual_seed(11)
    numbers = torch.rand(())
    torch.manual_seed(11)
    found = backend.run(meet_and_look)
    torch.set_rng_state(state)
    assert [process for process, _ in found] == processes
    for _, settings in found:
        assert (settings["variable"], settings["folder"]) == ("2", str(tmp_path))
        assert settings["random numbers"][2] == numbers.item()


def leave_a_thread(rank):
    threading.Thread(target=threading.Event().wait, daemon=True, name="heartbeat").start()
    return os.getpid()


def test_what_cannot_be_put_back_ends_the_ranks(backend):
    assert set(backend.run(leave_a_thread)).isdisjoint(backend.run(pid))


def end_badly(rank, how):
    if rank.number == 0:
        return
    if how == "raise":
        raise ValueError("rank 1 has had enough")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leave":
        os._exit(0)
    time.sleep(60)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "Rank 1 failed with ValueError: rank 1 has had enough"),
        ("kill", "Rank 1 was killed by SIGKILL"),
        (
            "leave",
            "Rank 1 exited with code 0 in the middle of launch 1, and the other ranks still needed "
            "it",
        ),
        (
            "hang",
            r"Rank 1 failed with TimeoutError: The ranks of "
            r"\S*test_ranks.py::test_a_bad_end_is_told_and",
        ),
    ],
    ids=["raise", "kill", "leave", "hang"],
)
def test_a_bad_end_is_told_and_the_next_test_gets_new_ranks(backend, how, told):
    before = backend.run(pid)
    limit = replace(backend, timeout_s=1 if how == "hang" else 30)
    with pytest.raises(WorkerError, match=told) as caught:
        limit.run(end_badly, how)
    assert caught.value.rank == 1
    assert ("in end_badly" in str(caught.value.__cause__)) is (how in ("raise", "hang"))
    assert set(backend.run(pid)).isdisjoint(before)
    for process in before:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


class SlowToTell(Exception):
    def __str__(self):
        time.sleep(1)
        return "rank 1 tells of it slowly"


def fail_before_the_other_is_done(rank):
    if rank.number == 1:
        raise SlowToTell
    time.sleep(0.3)


@pytest.mark.slow
def test_a_rank_that_is_done_after_another_has_failed_does_not_speak_for_it(backend):
    with pytest.raises(
        WorkerError, match=r"Rank 1 failed with \S*SlowToTell: rank 1 tells of it slowly"
    ):
        backend.run(fail_before_the_other_is_done)


def test_what_does_not_pickle_runs_in_new_processes(backend):
    kept, captured = backend.run(pid), object()
    assert set(backend.run(lambda rank: os.getpid() if captured else None)).isdisjoint(kept)
    assert backend.run(pid) == kept


def test_kept_ranks_end_when_they_are_told_to(backend):
    processes = backend.run(pid)
    end_kept_ranks()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_ranks_are_kept_where_the_path_of_temporary_files_is_long(backend, tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert len(set(backend.run(pid))) == 2
    end_kept_ranks()  # while the folder is there


_begun = []


class TestAnAuthorsFixture(StrategySmoke):
    """The effect of an author's fixture in this process is there in the ranks of each of the kit's
    tests.
    """

    alias = "single_device"
    num_processes = 1

    @pytest.fixture(autouse=True)
    def _begin(self, request):
        _begun.append(request.node.name)

    def make(self, **options):
        assert f"::{_begun[-1]} " in os.environ["PYTEST_CURRENT_TEST"]
        return STRATEGY_REGISTRY.create(self.alias, **options)


class TestAnAuthorsTest(StrategySmoke):
    """The patch of an author's own test is there in its ranks, after the kit's own have been
    kept.
    """

    alias = "single_device"
    num_processes = 1

    def test_what_it_patches(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            assert self.run(pid) == [-1]


# What isn't about ranks is tested elsewhere.
for _suite in (TestAnAuthorsFixture, TestAnAuthorsTest):
    for _name in filter(
        lambda name: name.startswith("test_"), (*vars(PackagingTests), *vars(UnityTests))
    ):
        setattr(_suite, _name, None)


def test_a_forgotten_loader_stops_no_fork(monkeypatch):
    """Its workers have threads in this process until it is collected, and a fork refuses to copy
    threads.
    """
    # so long torch waits for workers
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = DataLoader(torch.ones(8), num_workers=1, persistent_workers=True)
    next(iter(loader))
    loader.is_in_a_cycle = loader
    del loader
    assert Backend(lambda: "single_device", num_processes=2).run(number_of) == [0, 1]


def number_of(rank):
    return rank.number
