"""Training under `core go-on`: after each loss the weights are those of an undisturbed run."""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from core_testing import programs
from core_testing.waiting import slowness

PROGRAM = Path(__file__).with_name("lost_ranks_program.py")
NUM_STEPS = "16"


def start(folder, strategy, size, plan, *options, **variables):
    """Start the program. Its plan has a phase, step and rank for each round, in which a process
    kills itself.
    """
    command = [
        *programs.CORE,
        "go-on",
        "--devices",
        str(size),
        *options,
        PROGRAM,
        strategy,
        NUM_STEPS,
    ]
    env = (
        os.environ
        | {"OMP_NUM_THREADS": "1", "PLAN": json.dumps(plan), "CORE_MEMORY_FOLDER": str(folder)}
        | variables
    )
    env["CORE_GO_ON_TOKEN"] = "secret"
    return programs.start(command, cwd=folder, env=env)


def train(folder, strategy, size, plan, *options, **variables):
    folder.mkdir(exist_ok=True)
    program = start(folder, strategy, size, plan, *options, **variables)
    _, errors = program.communicate(timeout=150 * slowness())
    assert program.returncode == 0, errors
    return torch.load(folder / "weights.pt"), errors


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights of one process, which any number of ranks reaches."""
    weights, _ = train(tmp_path_factory.mktemp("undisturbed"), "auto", 1, [])
    return weights


def check(weights, undisturbed):
    torch.testing.assert_close(weights, undisturbed, rtol=0, atol=1e-12)
    times_seen = -12 * weights[-96:]  # a step of 12 samples adds a twelfth for each
    torch.testing.assert_close(
        times_seen, torch.full_like(times_seen, int(NUM_STEPS) * 12 / 96), rtol=0, atol=1e-9
    )


def fault(phase, step, rank):
    return {"phase": phase, "step": step, "rank": rank}


def test_ranks_are_killed_twice_in_a_row_and_while_saving(tmp_path, undisturbed):
    began_s = time.monotonic()
    weights, errors = train(
        tmp_path, "ddp", 2, [fault("forward", 5, 1), fault("meet", 5, 0), fault("save", 9, 1)]
    )
    check(weights, undisturbed)
    assert errors.count("was killed by SIGKILL") == 3
    seconds = json.loads((tmp_path / "goodput.json").read_text())
    assert seconds["lost"] > 0
    # no time counts twice where a process stays
    assert sum(seconds.values()) < time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "size"), [("ddp", 3), ("fsdp", 3), ("parallel", 4)])
def test_a_rank_is_killed_in_each_phase(tmp_path, undisturbed, strategy, size):
    phases = "set up", "data", "backward", "meet", "optimizer", "save", "validate", "forward", "end"
    ranks = 1, 0, size - 1, 0, 1, 0, size - 1, 0, 1
    plan = [
        fault(phase, step, rank)
        for step, (phase, rank) in enumerate(zip(phases, ranks, strict=True))
    ]
    weights, errors = train(tmp_path, strategy, size, plan, "--max-losses", "9")
    check(weights, undisturbed)
    assert errors.count("was killed by SIGKILL") == 9


@pytest.mark.slow
def test_it_trains_on_with_fewer(tmp_path, undisturbed):
    weights, _ = train(tmp_path, "fsdp", 3, [fault("backward", 5, 0)], "--min-devices", "2")
    check(weights, undisturbed)


@pytest.mark.slow
def test_a_rank_that_hangs_is_replaced(tmp_path, undisturbed):
    weights, errors = train(tmp_path, "ddp", 2, [fault("forward", 5, 1)], FAULT="hang")
    check(weights, undisturbed)
    assert "Rank 1 is asleep" in errors
    assert "Rank 1 was killed by SIGKILL" in errors


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_batch_that_does_not_fit_is_cut(tmp_path, undisturbed, strategy):
    weights, errors = train(tmp_path, strategy, 2, [], FAULT="memory", MOST_SAMPLES="2")
    check(weights, undisturbed)
    assert (
        errors.count(
            "Rank 1 ran out of memory. All ranks leave their step and their group, and meet again."
        )
        == 2
    )


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"MOST_SAMPLES": "2", "NORM": "1"},
            "A step ran out of memory, and its batch can't be cut: BatchNorm1d computes statistics "
            "of the whole batch, which those of its parts don't equal. Use a smaller batch, or "
            "another normalization, such as GroupNorm.",
        ),
        pytest.param(
            {"MOST_SAMPLES": "0"},
            "a step with 1 sample of each rank ran out of memory, and there is nothing left to cut",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["its statistics count", "one sample"],
)
def test_a_batch_that_cannot_be_cut_ends_the_run(tmp_path, variables, text):
    program = start(tmp_path, "auto", 1, [], FAULT="memory", **variables)
    _, errors = program.communicate(timeout=100 * slowness())
    assert program.returncode == 1
    assert text in errors


@pytest.mark.slow
def test_the_state_is_on_the_disk_when_it_gives_up(tmp_path, undisturbed):
    program = start(tmp_path, "ddp", 2, [fault("forward", 5, 0)], "--max-losses", "0")
    _, errors = program.communicate(timeout=100 * slowness())
    assert program.returncode == 1
    assert "core go-on: The newest state in memory is in .core-go-on/" in errors
    for kept in tmp_path.glob("core-*"):
        for state in kept.iterdir():
            state.unlink()
        kept.rmdir()
    weights, _ = train(tmp_path, "ddp", 2, [])
    check(weights, undisturbed)
    # batches of rank 0, each once
    assert len((tmp_path / "steps").read_text()) == 6 * int(NUM_STEPS)
    assert not (tmp_path / ".core-go-on").exists()
