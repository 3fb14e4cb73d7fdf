"""A whole `ddp` script as a user starts it. How it ends by force is in tests/launch and the kit."""

import os
import sys
from pathlib import Path

import pytest

from core_testing import programs

COMMAND = [sys.executable, str(Path(__file__).with_name("stages_program.py"))]


def run(what):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = programs.run([*COMMAND, what], env=environment, timeout=100)
    assert done.returncode == 1
    return done.stdout, done.stderr


def test_fit_validate_and_test_in_one_script_and_another_size_is_refused():
    out, err = run("stages")
    assert out.splitlines() == [str([{"mean": 21.5, "count": 11.0}])] * 4, err
    assert "since its first launch, and now devices=3" in err


@pytest.mark.parametrize("what", ["alone-after", "alone-before"])
def test_a_run_of_one_process_is_refused_in_every_other_rank(what):
    out, err = run(what)
    message = (
        "This program runs in 2 processes, this is rank 1, and devices=1 asks for a run of one process: each rank "
    )
    assert f"LaunchError: {message}" in err
    assert "    if trainer.is_global_zero:" in err
    assert out.count("a run of one process begins") <= 1
