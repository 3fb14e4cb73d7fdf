"""The example programs, started as a user starts them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_PROCESSES = ("--accelerator", "cpu", "--devices", "2")


def run_example(name, *arguments, starter=(sys.executable,)):
    """Output of an example that has to end well."""
    command = [*starter, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(output, processes="2 processes"):
    """What the last line says, once: rank 0 alone prints."""
    (line,) = re.findall(r"^Accuracy on 360 digits that were not trained on: (.*)$", output, re.MULTILINE)
    percent, _, rest = line.partition("%")
    assert rest == f" ({processes})"
    return float(percent)


def validation_losses(output):
    return [float(loss) for loss in re.findall(r"validation loss (\d+\.\d+)", output)]


def test_digits_are_read_after_training_in_two_processes():
    output = run_example("digits.py", *TWO_PROCESSES, "--strategy", "ddp")
    assert accuracy(output) > 95


@pytest.fixture(scope="module")
def accuracy_of_two_epochs():
    return accuracy(run_example("digits.py", *TWO_PROCESSES, "--strategy", "ddp", "--epochs", "2"))


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_digits_come_out_the_same_however_processes_are_made(strategy, accuracy_of_two_epochs):
    output = run_example("digits.py", *TWO_PROCESSES, "--strategy", strategy, "--epochs", "2")
    assert accuracy(output) == accuracy_of_two_epochs


def test_digits_on_one_device_in_bfloat16():
    arguments = ("--strategy", "single_device", "--accelerator", "cpu", "--precision", "bf16-mixed", "--epochs", "4")
    assert accuracy(run_example("digits.py", *arguments), "1 process") > 90


def test_digits_under_torchrun():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    output = run_example("digits.py", "--accelerator", "cpu", "--epochs", "2", starter=torchrun)
    assert accuracy(output) > 80


def test_char_gpt_learns_in_two_processes_and_writes():
    output = run_example("char_gpt.py", *TWO_PROCESSES, "--strategy", "ddp", "--steps", "150")
    first, last = validation_losses(output)
    assert last < first < 3.5, "drawing from 97 characters at random gives 4.6"
    sample = output.partition("\n\n")[2]
    assert sample.startswith("def ")
    assert len(sample) > 300


def test_char_gpt_through_a_function_that_is_spawned():
    output = run_example("char_gpt.py", *TWO_PROCESSES, "--strategy", "ddp_spawn", "--steps", "5")
    assert "2 process(es)" in output
    assert len(validation_losses(output)) == 1


def test_an_impossible_choice_is_refused_before_any_work():
    command = [sys.executable, str(EXAMPLES / "digits.py"), "--strategy", "single_device", *TWO_PROCESSES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "SingleDeviceStrategy trains on 1 device" in done.stderr
    assert done.stdout == ""
