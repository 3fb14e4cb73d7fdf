"""A rank that hangs or dies ends the run, and is named, whichever axis the others wait along."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import standing

from core import HangError, WatchdogOptions, WorkerError
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend

if TYPE_CHECKING:
    from pathlib import Path

AXES: dict[str, tuple[dict[str, Any], int, int]] = {
    "pipeline": ({"pipeline": 2, "balance": [2, 2]}, 2, 1),
    "schedule": ({"pipeline": 2, "balance": [2, 2], "schedule": "1F1B", "microbatches": 4}, 2, 1),
    "pipelines": ({"pipeline": 2, "balance": [2, 2], "data": 2}, 4, 2),
    "tensor": ({"tensor": 2}, 2, 1),
    "context": ({"context": 2}, 2, 1),
    "shard": ({"shard": 2}, 2, 2),
    "data": ({"data": 2}, 2, 2),
    "expert": ({"expert": 2}, 2, 2),
}

AWAITED = {
    "pipeline": "the result of the model, of rank 1",
    "schedule": "the gradient of stage 0's output for microbatch 0, of rank 1",
    "pipelines": "the result of the model, of rank 3",
}

MAKES = {"expert": standing.OfExperts}

# Ranks wait in a message of a pipeline or in a collective, and the watch looks at either in the same way on each axis.
BY_HAND = {"tensor", "context", "data", "expert"}
SLOW = [
    pytest.param(axis, marks=pytest.mark.exhaustive if axis in BY_HAND else pytest.mark.slow) for axis in list(AXES)[1:]
]


def on(axis: str, folder: Path | None = None) -> Backend:
    """Ranks of such a mesh, which are watched if there is a folder for what the watch writes."""
    sizes, num_processes, data_parallel_size = AXES[axis]
    watch = WatchdogOptions(limit=timedelta(seconds=1.5), end_after=timedelta(seconds=4), folder=folder)
    options = {} if folder is None else {"watch": watch}
    return Backend(partial(MeshParallelStrategy, **sizes), "cpu", num_processes, data_parallel_size, options)


@pytest.mark.parametrize("axis", ["pipeline", *SLOW])
def test_a_killed_rank_is_named(axis: str) -> None:
    backend = on(axis)
    last = backend.num_processes - 1
    with pytest.raises(WorkerError, match=rf"[Rr]ank {last} .*SIGKILL"):
        backend.run(standing.fit, last, "dies", MAKES.get(axis, standing.Third))


@pytest.mark.parametrize("axis", [pytest.param("pipeline", marks=pytest.mark.slow), *SLOW])
def test_a_rank_that_hangs_is_named_with_its_line(axis: str, tmp_path: Path) -> None:
    backend = on(axis, tmp_path)
    last = backend.num_processes - 1
    with pytest.raises(HangError, match=rf"Rank {last} is asleep at .*standing\.py:\d+ in forward") as caught:
        backend.run(standing.fit, last, "hangs", MAKES.get(axis, standing.Third))
    assert caught.value.absent == (last,)
    states = {each.rank: each.state for each in caught.value.ranks}
    assert states == dict.fromkeys(range(last), "waits") | {last: "asleep"}
    assert caught.value.ranks[last // 2].awaits == AWAITED.get(axis, "")


@pytest.mark.slow
def test_a_rank_that_strays_from_its_stage_is_named_with_what_the_others_wait_for(tmp_path: Path) -> None:
    with pytest.raises(HangError) as caught:
        on("schedule", tmp_path).run(standing.fit, 1, "strays")
    assert caught.value.absent == (1,)
    assert re.search(
        r"In another call than the others: rank 1 waits for the others at .*standing\.py:\d+ in forward .*; while "
        r"rank 0 waits for the gradient of stage 0's output for microbatch 0, of rank 1 at ",
        str(caught.value),
    )
    assert "rank 0  waits" in str(caught.value)
