"""The example programs on devices of XLA, on one and on four, by hand: `tox run -e xla -- -m slow plugins/xla/tests`.

Scripts as users start them are in the suite of `TestSPMD`.
"""

import os
import re
import subprocess
import sys

import pytest

from support.checkout import in_checkout

EXAMPLES = in_checkout("examples")


def run_example(name, devices, *arguments):
    command = [sys.executable, "-W", "ignore", EXAMPLES / name, "--accelerator", "xla", "--devices", devices]
    environment = os.environ | {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "4"])
def test_digits_are_read(devices):
    output = run_example("digits.py", devices, "--epochs", "2")
    (percent,) = re.findall(r"^Accuracy on 360 digits .*: ([\d.]+)% \(1 process\)$", output, re.MULTILINE)
    assert float(percent) > 90


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "4"])
def test_char_gpt_learns_and_writes(devices):
    """Drawing from 97 characters at random gives 4.6."""
    output = run_example("char_gpt.py", devices, "--steps", "20")
    (loss,) = re.findall(r"validation loss ([\d.]+)", output)
    assert float(loss) < 3.3
    sample = output.partition("\n\n")[2]
    assert sample.startswith("def ")
    assert len(sample) > 300
