"""A rank that hangs or dies ends the run, and is named, whichever axis the others wait along."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
import standing
from language import MixtureNet, Net, on

from core import HangError, WatchdogOptions, WorkerError
from core_testing.waiting import slowness

_STAGES = {"pipeline": 2, "balance": [2, 2]}
_SCHEDULE = {**_STAGES, "schedule": "1F1B", "microbatches": 4}
AXES = {
    "pipeline": _STAGES,
    "schedule": _SCHEDULE,
    "pipelines": {**_STAGES, "data": 2},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "shard": {"shard": 2},
    "data": {"data": 2},
    "expert": {"data": 2, "expert": 2},
}
AWAITED = {
    "pipeline": "the result of the model, of rank 1",
    "schedule": "the gradient of stage 0's output for microbatch 0, of rank 1",
    "pipelines": "the result of the model, of rank 3",
}


def stand(axis, how, folder=None):
    """The last rank of such a mesh stands so. Ranks are watched if there is a folder for what the
    watch writes.
    """
    backend = on(**AXES[axis])
    if folder is not None:
        limits = {
            "limit": timedelta(seconds=1.5 * slowness()),
            "end_after": timedelta(seconds=4 * slowness()),
        }
        backend = replace(backend, options={"watch": WatchdogOptions(**limits, folder=folder)})
    return backend.run(
        standing.fit, backend.num_processes - 1, how, MixtureNet if axis == "expert" else Net
    )


@pytest.mark.parametrize(
    "axis", ["pipeline", *(pytest.param(axis, marks=pytest.mark.slow) for axis in [*AXES][1:])]
)
def test_a_killed_rank_is_named(axis):
    with pytest.raises(
        WorkerError, match=rf"[Rr]ank {on(**AXES[axis]).num_processes - 1} .*SIGKILL"
    ):
        stand(axis, "dies")


# Ranks wait in a message of a pipeline or in a collective, and the watch looks at either in the
# same way on each axis.
@pytest.mark.slow
@pytest.mark.parametrize("axis", ["pipeline", "schedule", "pipelines", "shard"])
def test_a_rank_that_hangs_is_named_with_its_line(axis, tmp_path):
    last = on(**AXES[axis]).num_processes - 1
    with pytest.raises(
        HangError, match=rf"Rank {last} is asleep at .*standing\.py:\d+ in forward"
    ) as caught:
        stand(axis, "hangs", tmp_path)
    assert caught.value.absent == (last,)
    states = {each.rank: each.state for each in caught.value.ranks}
    assert states == dict.fromkeys(range(last), "waits") | {last: "asleep"}
    assert caught.value.ranks[last // 2].awaits == AWAITED.get(axis, "")


@pytest.mark.slow
def test_a_rank_that_strays_from_its_stage_is_named_with_what_the_others_wait_for(tmp_path):
    with pytest.raises(HangError) as caught:
        stand("schedule", "strays", tmp_path)
    assert caught.value.absent == (1,)
    assert re.search(
        r"In another call than the others: rank 1 waits for the others at .*standing\.py:\d+ in "
        r"forward .*; while rank 0 waits for the gradient of stage 0's output for microbatch 0, of "
        r"rank 1 at ",
        str(caught.value),
    )
    assert "rank 0  waits" in str(caught.value)
