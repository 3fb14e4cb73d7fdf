"""The CPU of a step of `parallel.py`: beside another one, and that of its checks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from core_fsdp import same_batches
from core_parallel.modules import followed_calls

Step = Callable[[], float | None]


def cpu_ms(step: Step, num_steps: int) -> float:
    """Milliseconds of CPU of all ranks, a step."""
    dist.barrier()
    began = time.process_time()
    for _ in range(num_steps):
        step()
    total = torch.tensor(time.process_time() - began)
    dist.all_reduce(total)
    return 1e3 * float(total) / num_steps


def compare(ours: Step, theirs: Step, num_steps: int, num_rounds: int) -> list[str]:
    """Medians of both, and of their ratios; the loss of both must be the same, where a rank has
    it.
    """
    for _ in range(17):
        one, other = ours(), theirs()
        assert other is None or abs(one - other) < 1e-3, (one, other)
    pairs = []
    for number in range(num_rounds):
        if number % 2:  # what goes second finds warmer caches, or a busier machine
            other_ms, own_ms = cpu_ms(theirs, num_steps), cpu_ms(ours, num_steps)
        else:
            own_ms, other_ms = cpu_ms(ours, num_steps), cpu_ms(theirs, num_steps)
        pairs.append((own_ms, other_ms))
    medians = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(one / other for one, other in pairs)
    least, most = (ratios[place] for place in interval(num_rounds))
    return [
        *(f"{one:.1f}" for one in medians),
        f"{statistics.median(ratios):.3f}",
        f"{least:.3f} to {most:.3f}",
    ]


@contextmanager
def checking(*, follows: bool = True, hashes: bool = False) -> Iterator[None]:
    """A context in which steps are followed or not, and batches hashed each time or never."""
    with (
        patch.object(followed_calls.FollowedCalls, "has", lambda *given: follows),
        patch.object(same_batches, "EVERY", 1 if hashes else 10**9),
    ):
        yield


@contextmanager
def timed(owner: Any, name: str) -> Iterator[list[float]]:
    """A context in which the seconds of CPU that a method takes are noted."""
    found: list[float] = []
    function = getattr(owner, name)

    def run(*args: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **options)
        finally:
            found.append(time.process_time() - began)

    with patch.object(owner, name, run):
        yield found


def cost_of_checks(step: Step, num_rounds: int) -> list[str]:
    """Milliseconds of a step that isn't followed, of following it, and of hashing its batch, which
    is done in every 100th; their share of a step.
    """
    plain, followed = [], []
    seconds = 0.0
    for _ in range(num_rounds):
        with checking(follows=False):
            plain.append(cpu_ms(step, 1))
        with checking():
            followed.append(cpu_ms(step, 1))
        with checking(hashes=True), timed(same_batches.SameBatches, "check") as found:
            cpu_ms(step, 1)
        seconds += sum(found)
    total = torch.tensor(seconds)
    dist.all_reduce(total)
    hashed = 1e3 * float(total) / num_rounds
    usual = statistics.median(plain)
    follow = max(
        0.0, statistics.median(one - other for one, other in zip(followed, plain, strict=True))
    )
    share = (follow + hashed / 100) / usual
    return [f"{one:.2f}" for one in (usual, follow, hashed)] + [f"{share:.2%}"]


def interval(number: int) -> tuple[int, int]:
    """Places in a sorted list between which the median of all lies, in 95 of 100 cases if the list
    is long enough.
    """
    below = 0
    while (
        below < number // 2
        and 2 * sum(math.comb(number, one) for one in range(below + 2)) <= 0.05 * 2**number
    ):
        below += 1
    return below, number - 1 - below
