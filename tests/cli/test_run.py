import os
import re

import pytest

from core_testing import programs

SCRIPT = """
import sys
from core import Fabric

fabric = Fabric(accelerator="cpu")
fabric.launch()
total = fabric.all_reduce(float(fabric.global_rank + 1), reduce_op="sum")
fabric.print(fabric.world_size, float(total), *sys.argv[1:])
fabric.teardown()
"""


def core_run(folder, *arguments):
    command = [*programs.CORE, "run", *arguments]
    return programs.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100)


@pytest.mark.slow
def test_a_script_runs_once_a_device_with_its_own_arguments(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = core_run(tmp_path, "--devices", "2", "train.py", "--devices", "7", "-m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 3.0 --devices 7 -m"


def test_a_failed_rank_is_named_in_a_line(tmp_path):
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    done = core_run(tmp_path, "--devices", "1", "fails.py")
    assert done.returncode == 1
    assert re.fullmatch(r"core run: Rank 0 \(pid \d+\) exited with code 3.*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "two", "train.py"], "'two' is neither a number of processes nor auto"),
        (["--devices", "0", "train.py"], "'0' is neither a number of processes nor auto"),
        (["--num-nodes", "2", "--node-rank", "2", "train.py"], "node 2 of 2: nodes count from 0"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_a_command_line_that_cannot_be_meant(tmp_path, arguments, message):
    done = core_run(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
