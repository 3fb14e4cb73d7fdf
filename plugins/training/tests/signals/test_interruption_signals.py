"""Real processes and real signals: where a training is, who gets the signal, and what is left of
it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from core.launch import ECHO_S
from core_testing import programs
from core_testing.waiting import slowness, wait_until

PROGRAM = Path(__file__).with_name("interruption_program.py")

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 138}
NAMES = {
    signal.SIGINT: "InterruptedByUser",
    signal.SIGTERM: "Interrupted",
    signal.SIGUSR1: "Interrupted",
}


class Run:
    """A program that is on its way; its folder tells."""

    def __init__(self, folder, *command, variables=None):
        self.folder = folder
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | (variables or {})
        self.process = programs.start(command, env=environment, merge_errors=True)

    def await_ranks(self, num_ranks):
        def are_there():
            assert self.process.poll() is None, self.process.communicate()[0]
            return len(self.pids()) == num_ranks

        wait_until(are_there, "rank where it should be interrupted")

    def pids(self):
        return [int(text) for path in self.folder.glob("pid-*") if (text := path.read_text())]

    def signal(self, number, *, group):
        (os.killpg if group else os.kill)(self.process.pid, number)

    def finish(self):
        output, _ = self.process.communicate(timeout=60 * slowness())
        return self.process.returncode, output

    def events(self, rank):
        return (self.folder / f"events-{rank}").read_text().splitlines()

    def assert_nobody_is_left(self):
        wait_until(lambda: not any(map(is_alive, self.pids())), "end of all ranks")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start(tmp_path):
    runs = []

    def start(strategy, where, *prefix, **options):
        runs.append(
            Run(
                tmp_path,
                *(prefix or [sys.executable]),
                PROGRAM,
                tmp_path,
                strategy,
                where,
                **options,
            )
        )
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


def assert_agreed_end(run, num_ranks, number, output):
    """All ranks have stopped after the same step, saved together there, and cleaned up."""
    steps = {run.events(rank)[-3] for rank in range(num_ranks)}
    assert len(steps) == 1, output
    assert steps.pop().startswith(f"{NAMES[number]} after step")
    assert [run.events(rank)[-2:] for rank in range(num_ranks)] == [
        ["agreed: True", "teardown"]
    ] * num_ranks
    assert (run.folder / "saved" / "on_exception.ckpt").exists(), output
    run.assert_nobody_is_left()


@pytest.mark.parametrize(
    ("strategy", "number", "group", "where"),
    [
        ("ddp", signal.SIGINT, False, "steps"),
        ("ddp_fork", signal.SIGTERM, False, "steps"),
        pytest.param("ddp_spawn", signal.SIGTERM, False, "steps", marks=pytest.mark.slow),
        ("single_device", signal.SIGINT, True, "steps with workers"),
        ("ddp", signal.SIGINT, True, "steps with workers"),
        ("ddp_fork", signal.SIGINT, True, "steps with workers"),
        # Spawned ranks spawn their loaders' workers.
        pytest.param(
            "ddp_spawn", signal.SIGINT, True, "steps with workers", marks=pytest.mark.slow
        ),
    ],
)
def test_training_ends_at_a_step_that_all_ranks_agree_on(start, strategy, number, group, where):
    num_ranks = 1 if strategy == "single_device" else 2
    run = start(strategy, where)
    run.await_ranks(num_ranks)
    run.signal(number, group=group)
    code, output = run.finish()
    assert code == CODES[number], output
    assert "Traceback" not in output, output
    assert_agreed_end(run, num_ranks, number, output)


@pytest.mark.slow
def test_under_torchrun(start):
    run = start("ddp", "steps", *programs.TORCHRUN, "--nproc-per-node=2", "--standalone")
    run.await_ranks(2)
    run.signal(signal.SIGTERM, group=False)
    code, output = run.finish()
    assert code != 0
    assert_agreed_end(run, 2, signal.SIGTERM, output)


def test_while_it_waits_for_data_it_ends_too(start):
    run = start("single_device", "data")
    run.await_ranks(1)
    run.signal(signal.SIGINT, group=True)
    code, output = run.finish()
    assert code == 130, output
    assert "InterruptedByUser after step" in run.events(0)[-3]
    assert run.events(0)[-1] == "teardown"
    run.assert_nobody_is_left()


def test_a_rank_in_validation_takes_the_others_with_it(start):
    run = start("ddp", "validation")
    run.await_ranks(2)
    run.signal(signal.SIGTERM, group=False)
    code, output = run.finish()
    assert code == 143, output
    assert run.events(0)[-1] == run.events(1)[-1] == "teardown"
    run.assert_nobody_is_left()


@pytest.mark.parametrize("where", ["long step", "save"])
def test_a_second_ctrl_c_ends_it_at_once(start, where):
    run = start("single_device", where)
    run.await_ranks(1)
    run.signal(signal.SIGINT, group=True)
    time.sleep(ECHO_S + slowness())  # one that comes sooner is the first one again
    assert run.process.poll() is None
    run.signal(signal.SIGINT, group=True)
    code, output = run.finish()
    assert code == 130, output
    assert run.events(0)[-2:] == ["agreed: False", "teardown"]


# SLURM's warning, with a scontrol that writes down what it is asked -------------------------------


def test_a_warning_saves_and_asks_for_another_run_which_goes_on_there(start, tmp_path):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/scontrol-calls"\n')
    scontrol.chmod(0o755)
    slurm_variables = {
        "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NAME": "train",
    }
    first = start("single_device", "requeue", variables=slurm_variables)
    first.await_ranks(1)
    first.signal(signal.SIGUSR1, group=True)
    code, output = first.finish()
    assert code == 138, output
    assert (tmp_path / "scontrol-calls").read_text() == "requeue 77\n"
    assert "SIGUSR1 came. Step" in output
    assert "the scheduler runs this job again." in output
    step = first.events(0)[-3].rpartition(" ")[2]
    (tmp_path / "pid-0").unlink()

    second = start(
        "single_device", "requeue", variables={**slurm_variables, "SLURM_RESTART_COUNT": "1"}
    )
    second.await_ranks(1)
    second.signal(signal.SIGTERM, group=False)
    code, output = second.finish()
    assert code == 143, output
    assert f"begins after step {step}" in second.events(0)
    assert (tmp_path / "scontrol-calls").read_text() == "requeue 77\n"
