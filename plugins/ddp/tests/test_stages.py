"""A whole `ddp` script as a user starts it: several stages, and every way in which it can end."""

import os
import sys
import time
from pathlib import Path

import pytest

from core_testing import programs

PROGRAM = Path(__file__).with_name("stages_program.py")
COMMAND = [sys.executable, str(PROGRAM)]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
# A stated limit of the product: the whole run ends within 10 s of a worker's death. Start-up comes on top.
START_S = 100


def run(what, folder):
    done = programs.run([*COMMAND, what, folder], env=ENVIRONMENT, timeout=START_S)
    return done.returncode, done.stdout, done.stderr


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_nobody_is_left(folder):
    pids = [int(path.read_text()) for path in folder.glob("pid-*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_fit_validate_and_test_in_one_script_and_another_size_is_refused(tmp_path):
    code, out, err = run("stages", tmp_path)
    expected_mean, expected_count = 21.5, 11.0
    assert f"('val_count', {expected_count}), ('val_mean', {expected_mean})" in out, err
    assert f"[{{'val_mean': {expected_mean}, 'val_count': {expected_count}}}]" in out
    assert f"[{{'test_count': {expected_count}}}]" in out
    assert f"rank 0 alone [{{'test_count': {expected_count}}}]" in out
    assert code == 1
    assert "since its first launch, and now devices=3" in err


@pytest.mark.parametrize("what", ["alone-after", "alone-before"])
def test_a_run_of_one_process_is_refused_in_every_other_rank(tmp_path, what):
    code, out, err = run(what, tmp_path)
    assert code == 1
    message = (
        "This program runs in 2 processes, this is rank 1, and devices=1 asks for a run of one process: each rank "
    )
    assert f"LaunchError: {message}" in err
    assert "    if trainer.is_global_zero:" in err
    assert out.count("a run of one process begins") <= 1


def test_a_killed_worker_ends_the_run_and_is_named(tmp_path):
    code, _, err = run("kill", tmp_path)
    assert code not in (0, None)
    assert "ank 1" in err
    assert "SIGKILL" in err
    assert_nobody_is_left(tmp_path)
    assert (tmp_path / "teardown-0").exists()


def test_an_exception_in_a_worker_comes_first(tmp_path):
    code, _, err = run("raise", tmp_path)
    assert code == 1
    position = err.index("rank 1 has had enough")
    assert "Connection closed" not in err[:position]
    assert (tmp_path / "exception-1").read_text() == "ValueError"
    assert (tmp_path / "teardown-0").exists()
    assert (tmp_path / "teardown-1").exists()
    assert_nobody_is_left(tmp_path)
