"""A whole `ddp` script as a user starts it: several stages, and every way in which it can end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("stages_program.py")
COMMAND = [sys.executable, str(PROGRAM)]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
# A stated limit of the product: the whole run ends within 10 s of a worker's death. Start-up comes on top.
START_S = 100


def start(what, folder):
    return subprocess.Popen(
        [*COMMAND, what, str(folder)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(what, folder):
    process = start(what, folder)
    out, err = process.communicate(timeout=START_S)
    return process.returncode, out, err


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
    assert code == 1
    assert "since its first launch, and now devices=3" in err


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


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_cleanly_with_an_honest_code(tmp_path, sent, code):
    process = start("wait", tmp_path)
    deadline = time.monotonic() + START_S
    while len(list(tmp_path.glob("pid-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(sent)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert_nobody_is_left(tmp_path)
    assert (tmp_path / "teardown-0").exists()
