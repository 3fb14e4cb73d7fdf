"""Runs in Monarch's actors, each a program of its own: how they end, and on several hosts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from core_testing.waiting import slowness, wait_until

FOLDER = Path(__file__).parent
VARIABLES = os.environ | {"OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def started(name, *arguments):
    """A program, as the first of a process group of its own, as a shell starts it."""
    command = [sys.executable, FOLDER / name, *arguments]
    options = {"stdout": subprocess.PIPE, "text": True, "env": VARIABLES, "start_new_session": True}
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def told(name, *arguments):
    with started(name, *arguments) as process:
        output, _ = process.communicate(timeout=200 * slowness())
    return json.loads(output.rpartition("TOLD")[2])


def pids(folder):
    return [int(file.read_text() or 0) for file in folder.glob("pid-*")]


def assert_all_end(ranks):
    wait_until(lambda: not any(map(psutil.pid_exists, ranks)), "end of all ranks")


@pytest.mark.parametrize(
    ("how", "exit_code", "text"),
    [
        ("kill", -signal.SIGKILL, "was killed by SIGKILL"),
        pytest.param("exit", 3, "exited with code 3", marks=pytest.mark.slow),
        pytest.param(
            "leave", 0, "exited with code 0 in the middle of its work", marks=pytest.mark.slow
        ),
        pytest.param(
            "raise", 1, "failed with ValueError: the user's hook fails", marks=pytest.mark.slow
        ),
    ],
)
def test_the_rank_that_ends_first_is_named(how, exit_code, text, tmp_path):
    """Though the other one waits for it in native code, and so loses a connection."""
    error = told("ended_program.py", tmp_path, how)
    assert (error["rank"], error["exit_code"]) == (1, exit_code)
    assert "Rank 1 (node 0, " in error["text"]
    assert text in error["text"]
    if how == "raise":
        assert "on_train_batch_end" in error["trace"]
    assert (tmp_path / "step-0").exists(), "rank 0 was not given the time to end"
    assert_all_end(pids(tmp_path))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_all_ranks_at_one_step(number, tmp_path):
    """Ctrl-C goes to the whole group, SIGTERM to the program alone."""
    with started("ended_program.py", tmp_path, "interrupt") as program:
        wait_until(lambda: len(pids(tmp_path)) == 2, "two ranks that train")
        (os.killpg if number == signal.SIGINT else os.kill)(program.pid, number)
        assert program.wait(timeout=60 * slowness()) in (128 + number, -number)
    steps = [(tmp_path / f"step-{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1]
    assert_all_end(pids(tmp_path))


def test_ranks_end_with_a_program_that_is_killed(tmp_path):
    with started("ended_program.py", tmp_path, "interrupt") as program:
        wait_until(lambda: len(pids(tmp_path)) == 2 and all(pids(tmp_path)), "two ranks that train")
        os.kill(program.pid, signal.SIGKILL)
        assert_all_end(pids(tmp_path))


def test_on_two_hosts(tmp_path):
    """The weights are those of one process, and ranks have the variables that are asked for, not
    their host's.
    """
    run = told("hosts_program.py")
    assert run["weights"] == pytest.approx(run["alone"], abs=1e-6)
    assert [place[:3] for place in run["places"]] == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    hosts = [place[3] for place in run["places"]]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert {place[4] for place in run["places"]} == {"there"}
    assert "there are 2 in `hosts`" in run["refused"]
