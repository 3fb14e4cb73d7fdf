"""A file is the previous checkpoint or the new one, whatever happens below the code that writes it."""

import errno
import shutil

import pytest

from checkpoint.simulated_disk import Recorder
from checkpoint.test_folder_survives import attempt, fail_from
from checkpoint.test_replacing import loaded_step, names, save


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "last.ckpt"


def prepare(path, before):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    if before == "checkpoint":
        save(path, 1)


def step_of(path):
    return loaded_step(path) if path.exists() else None


@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_a_machine_may_crash_after_any_change_and_lose_what_was_not_synced(path, before, tmp_path, monkeypatch):
    prepare(path, before)
    with monkeypatch.context() as patches:
        recorder = Recorder(path.parent, patches)
        save(path, 2)
    seen = set()
    for moment in range(recorder.time + 1):
        for seed in range(12):
            found = tmp_path / "found"
            recorder.crash(moment, seed, found)
            step = step_of(found / "last.ckpt")
            assert step == 2 or moment < recorder.time, "a save that has returned is lost"
            seen.add(step)
            shutil.rmtree(found)
    assert recorder.time > 10
    assert seen == ({None, 2} if before == "nothing" else {1, 2})


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_any_change_may_fail(path, before, error, monkeypatch):
    """Each change of the disk fails in turn, with all that come after it."""
    number, seen = 0, set()
    while True:
        number += 1
        prepare(path, before)
        with monkeypatch.context() as patches:
            fail_from(number, error, patches)
            failed = attempt(lambda: save(path, 2))
        if not failed:
            break
        seen.add(step_of(path))
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(path.parent) == ["last.ckpt", "last.ckpt.digest"]
    assert number > 8
    assert seen >= ({None} if before == "nothing" else {1})
