"""A checkpoint exists whole or not at all, whenever its writer dies, and whatever the disk says."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch

import core.checkpoint
from core.checkpoint import TorchCheckpointIO
from core.contract import CheckpointError
from support.checkpoint_collectives import Alone

ALONE = Alone()
VALUES = 2_000
OF_STORAGE = os.path.dirname(core.checkpoint.__file__) + os.sep
CHANGES = {"open", "write", "flush", "close", "fsync", "flock", "mkdir", "replace", "rename", "unlink", "truncate"}
"""Names of the calls into the system before which a process is killed."""


def state(step):
    return {"step": step, "x": torch.full((VALUES,), float(step))}


def save(path, step):
    TorchCheckpointIO().save_checkpoint(state(step), path, collectives=ALONE)


def loaded_step(path):
    """The step of the checkpoint, which is whole and has been verified."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = TorchCheckpointIO().load_checkpoint(path, collectives=ALONE)
    assert torch.equal(loaded["x"], state(loaded["step"])["x"])
    return loaded["step"]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def dies_before_call(number, work):
    """Run `work` in a copy of this process that kills itself before its n-th change of a file.

    Returns whether it got that far.
    """
    process = os.fork()
    if process == 0:
        status = 1
        try:
            kill_before_call(number)
            work()
            status = 0
        finally:
            os._exit(status)
    _, outcome = os.waitpid(process, 0)
    assert os.WIFSIGNALED(outcome) or os.WEXITSTATUS(outcome) == 0
    return os.WIFSIGNALED(outcome)


def kill_before_call(number):
    """Let this process kill itself before its n-th change of a file from now on."""
    left = number

    def count(frame, event, function):
        nonlocal left
        if event != "c_call" or function.__name__ not in CHANGES:
            return
        if function.__module__ == "posix" or frame.f_code.co_filename.startswith(OF_STORAGE):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def empty(folder):
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("before", ["checkpoint", "nothing", "foreign file", "interrupted save"])
def test_a_writer_may_die_at_any_moment(tmp_path, before):
    path = tmp_path / "last.ckpt"
    number, seen = 0, set()
    while True:
        number += 1
        empty(tmp_path)
        prepare(path, before)
        if not dies_before_call(number, lambda: save(path, 2)):
            break
        if path.exists():
            # Only a file that had no digest when the save began may still be without one.
            unverified = before == "foreign file" and not (tmp_path / ".last.ckpt.digest").exists()
            seen.add("unverified" if unverified else loaded_step(path))
        else:
            assert before == "nothing"
            seen.add(None)
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(tmp_path) == [".last.ckpt.digest", "last.ckpt"], "what the dead writer left was not swept"
    assert number > 20
    assert 2 in seen
    assert seen >= ({None} if before == "nothing" else {1})


def prepare(path, before):
    if before == "checkpoint":
        save(path, 1)
    elif before == "foreign file":
        torch.save(state(1), path)
    elif before == "interrupted save":
        save(path, 0)
        save(path.with_name("next.ckpt"), 1)
        old, new = (path.with_name(f".{name}.ckpt.digest").read_text() for name in ("last", "next"))
        path.with_name(".last.ckpt.digest").write_text(old + new)
        path.with_name("next.ckpt").replace(path)
        path.with_name(".next.ckpt.digest").unlink()


def test_a_remover_may_die_at_any_moment(tmp_path):
    path = tmp_path / "last.ckpt"
    number = 0
    while True:
        number += 1
        save(path, 1)
        if not dies_before_call(number, lambda: TorchCheckpointIO().remove_checkpoint(path, collectives=ALONE)):
            break
        assert not path.exists() or loaded_step(path) == 1
    assert number == 3
    assert names(tmp_path) == []


@pytest.mark.slow
def test_a_living_writers_file_is_not_swept(tmp_path):
    """While one saves slowly, another saves to the same path: neither loses its file, and the last one counts."""
    path = tmp_path / "last.ckpt"
    program = f"""
import sys
from core.checkpoint.file.location import LocalLocation
from core.checkpoint.format import digest
from pathlib import Path

def write(file):
    print("writing", flush=True)
    sys.stdin.readline()
    file.write(b"slow")
    hashed = digest.new_hash()
    hashed.update(b"slow")
    return hashed.hexdigest()

LocalLocation(Path({str(path)!r})).replace(write)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slow:
        slow.stdout.readline()
        save(path, 1)
        assert loaded_step(path) == 1
        slow.stdin.write(b"go on\n")
        slow.stdin.flush()
        assert slow.wait(60) == 0
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == [".last.ckpt.digest", "last.ckpt"]
    save(path, 2)
    assert loaded_step(path) == 2


def test_reading_while_others_replace_it_always_gives_a_whole_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    save(path, 0)
    stop = threading.Event()

    def keep_saving(first):
        step = first
        while not stop.is_set():
            save(path, step)
            step += 2

    writers = [threading.Thread(target=keep_saving, args=(first,)) for first in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        until = time.monotonic() + 1.5
        steps = set()
        while time.monotonic() < until:
            steps.add(loaded_step(path))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert len(steps) > 1
    loaded_step(path)
    assert names(tmp_path) == [".last.ckpt.digest", "last.ckpt"]


def check_nothing_changed(path, expected):
    with pytest.raises(CheckpointError, match=rf"can't be written: {expected}\. What was there is untouched"):
        save(path, 2)
    assert loaded_step(path) == 1
    assert names(path.parent) == [".last.ckpt.digest", "last.ckpt"]


def test_a_write_that_fails_midway_leaves_the_previous_one(tmp_path):
    path = tmp_path / "last.ckpt"
    save(path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        check_nothing_changed(path, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    save(path, 2)
    assert loaded_step(path) == 2


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("can't mount a small disk: not root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_previous_one(small_disk):
    path = small_disk / "last.ckpt"
    save(path, 1)
    (small_disk / "ballast").write_bytes(bytes(12_000))
    with pytest.raises(CheckpointError, match="can't be written: No space left on device"):
        save(path, 2)
    (small_disk / "ballast").unlink()
    assert loaded_step(path) == 1
    assert names(small_disk) == [".last.ckpt.digest", "last.ckpt"]


def test_a_folder_that_is_read_only_leaves_the_previous_one(tmp_path):
    path = tmp_path / "last.ckpt"
    save(path, 1)
    for file in (*tmp_path.iterdir(), tmp_path):
        file.chmod(0o555)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            # Folders above may be closed to a user who isn't root, so that the path is a relative one.
            os.chdir(tmp_path)
            if os.geteuid() == 0:
                os.setuid(65534)
            check_nothing_changed(Path("last.ckpt"), "Permission denied")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, outcome = os.waitpid(process, 0)
    tmp_path.chmod(0o755)
    assert outcome == 0
