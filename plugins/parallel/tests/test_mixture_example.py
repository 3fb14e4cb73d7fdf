"""The example of experts prints the same losses on one device and with experts distributed over
two.
"""

import os
import re
import sys

import pytest

from core_testing import programs
from support.checkout import in_checkout

EXAMPLE = in_checkout("examples/mixture_of_experts.py")


def losses(*arguments):
    command = [sys.executable, str(EXAMPLE), "--accelerator", "cpu", "--epochs", "1", *arguments]
    done = programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        len(
            re.findall(
                r"^expert_load/blocks\.\d\.mixture\.experts/max_violation \d", done.stdout, re.M
            )
        )
        == 2
    )
    return [
        float(loss)
        for loss in re.findall(r"^Epoch \d: loss (\d+\.\d+)$", done.stdout, re.MULTILINE)
    ]


@pytest.mark.slow
def test_experts_learn_alike_on_one_device_and_distributed():
    alone = losses()
    assert len(alone) == 1
    assert alone[0] < 4.0, "drawing from 128 bytes at random gives 4.9"
    assert losses("--expert", "2", "--devices", "2") == pytest.approx(alone, abs=1e-3)
