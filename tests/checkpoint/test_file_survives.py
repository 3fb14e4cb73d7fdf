"""A file is the previous checkpoint or the new one, whatever happens below the code that writes it."""

import errno
import io
import shutil

import pytest

from checkpoint.simulated_disk import crashes, failures
from checkpoint.test_replacing import loaded_step, names, save
from core.checkpoint.storage import disk


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
    seen = set()
    states = crashes(path.parent, lambda: save(path, 2), tmp_path / "found", monkeypatch, more_than=10)
    for found, has_returned in states:
        step = step_of(found / "last.ckpt")
        assert step == 2 or not has_returned, "a save that has returned is lost"
        seen.add(step)
    assert seen == ({None, 2} if before == "nothing" else {1, 2})


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_any_change_may_fail(path, before, error, monkeypatch):
    """Each change of the disk fails in turn, with all that come after it."""
    seen, old = set(), None if before == "nothing" else 1
    for told in failures(lambda: prepare(path, before), lambda: save(path, 2), error, monkeypatch):
        assert step_of(path) == (2 if "is in its place" in told else old), told
        assert error.strerror in told, "and not what torch makes of it"
        seen.add(step_of(path))
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(path.parent) == [".last.ckpt.digest", "last.ckpt"]
    assert seen == {old, 2}
    assert step_of(path) == 2, "what fails after that is no failed save"


def test_a_file_that_fails_to_close_when_it_is_in_its_place_is_no_failed_save(path, monkeypatch):
    closed = []

    class Grumbling(io.BufferedWriter):
        def close(self):
            super().close()
            closed.append(self)
            raise OSError(errno.EIO, "Input/output error")

    save(path, 1)
    with monkeypatch.context() as patches:
        patches.setattr(disk, "create", lambda path: Grumbling(path.open("xb", buffering=0)))
        save(path, 2)
    assert closed
    assert loaded_step(path) == 2
    assert names(path.parent) == [".last.ckpt.digest", "last.ckpt"]


def test_a_digest_whose_file_is_gone_goes_with_the_next_save(path):
    for name in ("old.ckpt", "kept.ckpt"):
        save(path.with_name(name), 1)
    path.with_name("old.ckpt").unlink()  # and the remover was killed
    path.with_name("somebody's.digest").write_text("a summary of the run")
    save(path, 2)
    kept = [".kept.ckpt.digest", ".last.ckpt.digest", "kept.ckpt", "last.ckpt", "somebody's.digest"]
    assert names(path.parent) == kept
