"""A script whose last save fails when no line of it is left doesn't end with 0."""

import os
import subprocess
import sys

import pytest

ENDS = {
    "of a global": "fabric = Fabric(accelerator='cpu', devices=1, "
    "plugins=checkpoint_io)\nsave(fabric)",
    "of a function": "main()",
    # Rank 0's failure comes while the interpreter of rank 1 waits for a thread.
    "of two ranks": "import concurrent.futures, time\n"
    "fabric = Fabric(accelerator='cpu', devices=2, plugins=checkpoint_io)\nsave(fabric)\n"
    "if fabric.global_rank: concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 5)",
}


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, marks=[] if end == "of a global" else [pytest.mark.slow]) for end in ENDS],
)
def test_a_save_that_fails_at_the_end_gives_the_process_another_code_than_0(tmp_path, end):
    script = """
import sys
from core import Fabric
from core.checkpoint import AsyncCheckpointIO

def save(fabric):
    fabric.launch()
    fabric.save(sys.argv[1], {"x": 1})
    print("saved", flush=True)

def main():
    save(Fabric(accelerator="cpu", devices=1, plugins=checkpoint_io))

checkpoint_io = AsyncCheckpointIO()
"""
    (tmp_path / "file").write_text("")
    (tmp_path / "script.py").write_text(script + ENDS[end])
    command = [sys.executable, tmp_path / "script.py", tmp_path / "file" / "x.ckpt"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # By Python itself: what forks a process for a test doesn't end it as the interpreter does.
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "saved" in done.stdout
    assert done.returncode == 120, done.stderr
    assert "x.ckpt' can't be written: File exists" in done.stderr
    assert "Exception ignored" not in done.stderr
