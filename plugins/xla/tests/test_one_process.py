"""Training on devices of XLA in one process: one device, and four that the processor plays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FORMS = {
    "single_xla": {"strategy": "single_xla", "devices": 1},
    "xla_spmd": {"strategy": "xla_spmd", "devices": 4},
}


def run_program(name, *arguments, **variables):
    """The last line that a program of these tests prints, which is JSON."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-W", "ignore", HERE / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=list(FORMS))
def told(request, tmp_path_factory):
    options = FORMS[request.param]
    return run_program(
        "one_process_program.py", json.dumps(options), tmp_path_factory.mktemp("run")
    )


def test_twenty_steps_are_those_of_one_device(told):
    assert told["furthest"] < 1e-5
    assert told["is_tied"]


def test_a_metric_of_one_number_begins_anew_each_epoch(told):
    """Saved at the end of each, too."""
    counted, last = told["summed"]
    assert len(counted) == 3
    assert counted == [last] * 3
    assert last > 0


def test_a_step_neither_compiles_nor_waits(told):
    """After warm-up, with values logged by step and epoch, gradients clipped and a scheduler, but
    no logger.
    """
    assert told["last_steps"] == [0, 0, 0]


def test_a_step_that_is_logged_is_read_once(told):
    """Its values and its loss, of which a warning looks whether it is finite, come in one
    transfer.
    """
    assert told["last_logged_steps"] == [0, 6, 0]


def test_mark_step_sends_off_what_was_noted(told):
    """In a loop by hand; and nothing when nothing was."""
    assert told["graphs_by_hand"] == [1, 0]


def test_scaling_the_loss_is_refused(told):
    assert "use 'bf16-mixed'" in told["16-mixed"]
