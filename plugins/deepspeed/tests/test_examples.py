"""The example that trains a small GPT, with everything cut and offloaded."""

import os
import re
import subprocess
import sys

from support.checkout import in_checkout

EXAMPLE = in_checkout("examples/char_gpt.py")


def test_char_gpt_learns_at_stage_3_with_everything_offloaded():
    where = (
        "--strategy",
        "deepspeed_stage_3_offload",
        "--devices",
        "2",
        "--accelerator",
        "cpu",
        "--steps",
        "40",
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *where],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 process(es)" in done.stdout
    (loss,) = re.findall(r"validation loss (\d+\.\d+)", done.stdout)
    assert float(loss) < 3.0, "drawing from 97 characters at random gives 4.6"
    assert done.stdout.partition("\n\n")[2].startswith("def ")
    assert "deprecated" not in done.stderr
