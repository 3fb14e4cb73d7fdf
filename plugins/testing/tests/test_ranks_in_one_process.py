"""Ranks in one process: what they compute and say is what processes do, and what they can't show is
refused by name.
"""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from core import ConfigurationError, WorkerError
from core.strategies import ParallelStrategy
from core_testing import Backend, in_one_process


def number():
    return int(os.environ["RANK"])


@pytest.mark.skipif(sys.platform != "linux", reason="threads are files there")
def test_no_thread_is_left_where_a_fork_would_find_its_locks_taken():
    for _ in range(10):
        for thread in in_one_process(threading.get_native_id):
            assert not os.path.exists(f"/proc/self/task/{thread}")


def test_ranks_hear_what_they_would_over_gloo():
    def say_all():
        """What this rank hears in every collective."""
        rank, size = number(), int(os.environ["WORLD_SIZE"])
        own = torch.arange(8.0).view(4, 2) + 10 * rank
        heard = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            heard.append(own.clone())
            dist.all_reduce(heard[-1], op)
        for say in (dist.broadcast, dist.reduce):
            heard.append(own.clone())
            say(heard[-1], 1)
            dist.barrier()
        heard[-1] = heard[-1] if rank == 1 else None  # of the others nothing is promised
        whole, part = torch.empty(4 * size, 2), torch.empty(2, 2)
        # the name before torch 2.13
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, own)
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, own)
        mine = torch.empty(4, 2)
        dist.scatter(mine, [own * number for number in range(size)] if rank == 1 else None, 1)
        parts = [torch.empty(4, 2) for _ in range(size)]
        dist.all_gather(parts, own)
        gathered = [torch.empty(4, 2) for _ in range(size)] if rank == 0 else None
        dist.gather(own, gathered)
        objects = [{"rank": rank}]
        dist.broadcast_object_list(objects, 1)
        before, after = (rank - 1) % size, (rank + 1) % size
        received = [torch.empty(4, 2) for _ in range(2)]
        works = [
            *(dist.irecv(each, before) for each in received),
            *(dist.isend(own * each, after) for each in (1, 2)),
        ]
        for work in reversed(works):  # messages come in the order in which they were asked for
            work.wait()
        pair = dist.new_group([0, 1], backend="gloo")
        dist.all_reduce(own, group=pair)
        return [*heard, whole, part, mine, parts, gathered, objects, received, own]

    def say_all_over_gloo(rank):
        os.environ |= {"RANK": str(rank.number), "WORLD_SIZE": "2"}
        rank.fabric().barrier()
        return say_all()

    expected = Backend(ParallelStrategy, num_processes=2).run(say_all_over_gloo)

    def as_nested(values):
        return torch.utils._pytree.tree_map(
            lambda value: value.tolist() if torch.is_tensor(value) else value, values
        )

    assert as_nested(in_one_process(say_all)) == as_nested(expected)
    assert not dist.is_initialized()


def test_each_rank_has_its_own_and_the_process_is_as_before(tmp_path):
    def first_draw(seed):
        return torch.rand((), generator=torch.Generator().manual_seed(seed)).item()

    def change_all(folder, given):
        given.append(number())
        os.chdir(folder / str(number()))
        torch.set_default_dtype(torch.float64 if number() else torch.float32)
        torch.manual_seed(number())
        dist.barrier()
        return (
            given,
            os.path.basename(os.getcwd()),
            torch.ones(()).dtype,
            torch.rand(()).item() == first_draw(number()),
        )

    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    given, before = (
        [],
        (os.getcwd(), torch.get_default_dtype(), torch.get_rng_state().tolist(), dict(os.environ)),
    )
    assert in_one_process(change_all, tmp_path, given) == [
        ([0], "0", torch.float32, True),
        ([1], "1", torch.float64, True),
    ]
    assert given == []
    assert before == (
        os.getcwd(),
        torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
        dict(os.environ),
    )


def test_ranks_take_turns_where_they_wait():
    seen = []

    def work():
        for _ in range(2):
            seen.append(number())
            dist.barrier()

    in_one_process(work, ranks=3)
    assert seen == [0, 1, 2, 0, 1, 2]


def raise_late():
    dist.barrier()
    raise ValueError("rank 1 has had enough")


def speak_in_background():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(dist.barrier).result()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (raise_late, "Rank 1 failed with ValueError: rank 1 has had enough"),
        (
            lambda: dist.recv(torch.ones(1), 0),
            "rank 0 waits for barrier, rank 1 waits for a message from rank 0",
        ),
        (sys.exit, "Rank 1 failed with SystemExit"),
        (
            lambda: dist.all_reduce(torch.ones(2)),
            r"rank 0: barrier; rank 1: all_reduce of torch.float32 \(2,\)",
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)),
            "UnsupportedError: .* have no all_to_all_single",
        ),
        (os.fork, "UnsupportedError: A rank in one process can't fork, as a loader's workers"),
        (
            lambda: os.kill(os.getpid(), signal.SIGTERM),
            "UnsupportedError: A rank in one process can't send a signal",
        ),
        (
            lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
            "ValueError: signal only works in main thread",
        ),
        (
            speak_in_background,
            "UnsupportedError: A background thread of a rank in one process can't talk to others",
        ),
    ],
)
def test_what_goes_wrong_is_told_with_its_rank(how, told):
    ended = []

    def work():
        try:
            if number() == 1:
                how()
            dist.barrier()
            dist.barrier()
        finally:
            ended.append(number())

    with pytest.raises(WorkerError, match=told) as caught:
        in_one_process(work)
    assert sorted(ended) == [0, 1]
    assert caught.value.rank == ("waits for" not in told and "rank 0: barrier" not in told)


def test_a_rank_that_ends_early_is_named():
    with pytest.raises(WorkerError, match="rank 1 waits for barrier, rank 0 has ended"):
        in_one_process(lambda: number() == 1 and dist.barrier())


def test_a_rank_that_waits_for_something_else_is_found():
    never = threading.Event()
    with pytest.raises(
        WorkerError,
        match=r"Rank 0 has not come to a wait for another rank in 0\.1 s:\n(.|\n)*never\.wait",
    ):
        in_one_process(lambda: never.wait(), timeout_s=0.1)
    never.set()


def test_a_device_other_than_the_processor_is_refused():
    with pytest.raises(ConfigurationError, match=r"for accelerator='cpu' only, and not for 'cuda'"):
        Backend(lambda: "ddp", "cuda", 2, in_process=True).run(print)
