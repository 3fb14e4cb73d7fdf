"""Training on clusters of Ray's that run on this machine: two nodes, and one that starts and ends
with the run.
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from core_testing.waiting import slowness, wait_until

PROGRAMS = Path(__file__).parent
TIMEOUT_S = 280


def run(what, folder, timeout_s=TIMEOUT_S):
    """A program's report of a run on a cluster of two nodes, which has all its room again
    afterwards.
    """
    command = [sys.executable, PROGRAMS / "ray_program.py", what, folder]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s * slowness(), cwd=folder
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines, done.stdout + done.stderr
    answer = json.loads(lines[0].removeprefix("TOLD "))
    assert answer["still"], "the program's own connection to Ray was closed"
    return answer["told"]


def test_two_nodes_equal_one_device(tmp_path):
    told = run("on_two_nodes", tmp_path)
    assert [place[:3] for place in told["places"]] == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    nodes = [place[3] for place in told["places"]]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert not [place for place in told["places"] if psutil.pid_exists(place[4])]
    assert told["weights"][0] == pytest.approx(told["weights"][1], abs=1e-6)
    assert told["steps"] == [8, 8]
    assert told["metric"][0] == pytest.approx(told["metric"][1], rel=1e-6)
    assert told["tested"] == pytest.approx(told["metric"][0], rel=1e-6)


def test_the_first_failure_is_named_with_its_node(tmp_path):
    told = run("failing", tmp_path)
    name, text, rank, trace = told["raise"]
    assert (name, rank) == ("WorkerError", 1)
    assert text.startswith("Rank 1 (node 1, 127.0.0.1, pid ")
    assert "ValueError: the user's hook fails" in text
    assert "in on_train_batch_end" in trace
    name, text, rank, _ = told["leave"]
    assert (name, rank) == ("WorkerError", 1)
    assert "exited with code 0 in the middle of its work" in text
    name, text, rank, _ = told["kill"]
    assert (name, rank) == ("LostWorkerError", 1)
    assert "Rank 1 (node 1, 127.0.0.1, pid " in text
    assert "its process or its node is gone. Ray says:" in text


def test_a_restarted_run_equals_an_undisturbed_one(tmp_path):
    """Bit by bit, whenever rank 1 was killed: before training, within an epoch, in validation."""
    told = run("lost_and_restarted", tmp_path)
    assert told["warnings"].pop("none") == []
    for name, messages in told["warnings"].items():
        assert len(messages) == 1, name
        assert "Rank 1 (node 1" in messages[0]
        assert "restart 1 of at most 1" in messages[0]
    assert {name: steps for name, steps in told["steps"].items() if steps != 24} == {}
    undisturbed = told["weights"]["none"]
    assert [name for name, weights in told["weights"].items() if weights != undisturbed] == []


def test_the_launcher_finds_a_cluster_and_leaves_it_again(tmp_path):
    assert run("by_address", tmp_path) == [[2, False], [2, False]]


def test_no_room_is_an_error_that_says_what_there_is(tmp_path):
    text = run("without_room", tmp_path)
    assert (
        "no room for this run within 3 s: it needs 2 bundles of CPU: 3, placed by STRICT_SPREAD"
        in text
    )
    assert "The cluster has node 127.0.0.1 with CPU: 2; node 127.0.0.1 with CPU: 2" in text
    assert "Free now: CPU: 4" in text


def test_ranks_take_the_gpus_of_a_node_that_the_program_is_not_on(tmp_path):
    """Ray counts GPUs that a node says it has; the ranks of this run compute on its CPU."""
    told = run("on_gpus", tmp_path)
    assert told["devices"] == 2
    assert sorted(rank["gpus"] for rank in told["ranks"]) == [["0"], ["1"]]
    assert len({rank["visible"] for rank in told["ranks"]}) == 1
    assert sorted(told["ranks"][0]["visible"].split(",")) == ["0", "1"]
    assert {rank["node"] for rank in told["ranks"]} == {told["node"]}


def test_a_callback_of_a_function_brings_its_state_back(tmp_path):
    """And it is found in a checkpoint by a run without Ray."""
    told = run("callback_of_a_function", tmp_path)
    assert told == {"brought": 8, "loaded": 8}


def test_ray_train_has_made_the_processes(tmp_path):
    told = run("in_ray_train", tmp_path)
    assert [rank[:3] for rank in told] == [["RayTrainEnvironment", "InPlaceLauncher", 2]] * 2
    assert told[0][3] == told[1][3]


@pytest.mark.slow
@pytest.mark.timeout(600)  # Ray Train starts its workers twice
def test_a_machine_that_ray_train_will_lose_ends_the_run_as_sigterm_does(tmp_path):
    """No step is made twice, and the run that goes on elsewhere equals an undisturbed one, bit by
    bit.
    """
    told = run("taken_away", tmp_path, 580)
    for rank in (0, 1):
        first, second = told[f"steps-{rank}-0"], told[f"steps-{rank}-1"]
        assert 3 < len(first) < 120
        assert first + second == list(range(1, 121))
        assert told[f"weights-{rank}"] == told["undisturbed"]


def test_a_trial_of_ray_tune_has_ranks_of_its_own(tmp_path):
    assert run("in_ray_tune", tmp_path) == [4, 8]


def test_a_program_without_a_file_or_a_guard(tmp_path):
    """Its definitions reach the ranks, and so do variables; what can't is named."""
    command = [sys.executable, "-c", (PROGRAMS / "prompt_program.py").read_text()]
    variables = os.environ | {"CORE_ASKED": "yes"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1].removeprefix("TOLD "))
    result = told["result"]
    assert (result["ranks"], result["variables"], result["draws"]) == (
        [0, 1],
        ["yes", "1", "0"],
        told["draws"],
    )
    assert "The launcher 'ray' pickles what its workers need, and argument" in told["unpicklable"]
    assert "lock" in told["unpicklable"]
    assert not [pid for pid in (*result["pids"], result["raylet"]) if psutil.pid_exists(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_ranks_at_one_step(tmp_path, number):
    """The program ends with the code of the signal, and of Ray and the ranks nothing is left."""
    command = [sys.executable, PROGRAMS / "interrupted_program.py", tmp_path]
    output = tmp_path / "output"
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, cwd=tmp_path) as program,
    ):
        try:
            pids = wait_until(partial(pids_of, tmp_path, program), "two ranks that train")
            family = psutil.Process(program.pid).children(recursive=True)
            os.kill(program.pid, number)
            code = program.wait(60 * slowness())
        finally:
            program.kill()
    said = output.read_text()
    assert code == (-number if number == signal.SIGINT else 128 + number) or code == 128 + number, (
        said
    )
    steps = {path.name: path.read_text() for path in tmp_path.glob("step-*")}
    assert steps.keys() == {"step-0", "step-1"}, said
    assert len(set(steps.values())) == 1, steps
    _, left = psutil.wait_procs(
        [*family, *(psutil.Process(pid) for pid in pids if psutil.pid_exists(pid))], 20 * slowness()
    )
    assert not left, said


def pids_of(folder, program):
    """The processes of both ranks, once they train."""
    assert program.poll() is None, (folder / "output").read_text()
    files = [folder / "pid-0", folder / "pid-1"]
    return all(file.exists() and file.read_text() for file in files) and [
        int(file.read_text()) for file in files
    ]
