"""A checkpoint is the previous one or the new one, whole, whatever happens to its writer and below
it.
"""

import errno
import io
import os
import re
import shutil
import threading
from itertools import count

import pytest
import torch

from checkpoint.simulated_disk import Faults, attempt, crashes, failures, patch_disk
from checkpoint.steps import ALONE, Meanwhile, dies_before_call, loaded_step, names, save, state
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.checkpoint.file.location import LocalLocation
from core.checkpoint.format import digest
from core.checkpoint.storage import disk
from core.contract import CheckpointError
from core_testing.waiting import wait_until

WHOLE = {
    DistributedCheckpointIO: ["last.ckpt"],
    TorchCheckpointIO: [".last.ckpt.digest", "last.ckpt"],
}
"""All that there is when nothing is left over."""
IN_EACH_FORM = pytest.mark.parametrize("kind", WHOLE)
ON_EACH_GROUND = pytest.mark.parametrize("before", ["nothing", "checkpoint"])
BROKEN = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "last.ckpt"


def prepare(path, before, kind):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    if before == "foreign file":
        torch.save(state(1), path)
    elif before == "interrupted save":
        save(path, 0, kind)
        save(path.with_name("next.ckpt"), 1, kind)
        old, new = (path.with_name(f".{name}.ckpt.digest").read_text() for name in ("last", "next"))
        path.with_name(".last.ckpt.digest").write_text(old + new)
        path.with_name("next.ckpt").replace(path)
        path.with_name(".next.ckpt.digest").unlink()
    elif before == "checkpoint":
        save(path, 1, kind)


def check_the_next_save(path, kind):
    save(path, 3, kind)
    assert loaded_step(path) == 3
    assert names(path.parent) == WHOLE[kind], "what the dead writer left was not swept"
    assert path.is_file() or len(names(path)) == 3


def found_step(path):
    return loaded_step(path) if path.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "before"),
    [
        *[(kind, before) for kind in WHOLE for before in ("nothing", "checkpoint")],
        (TorchCheckpointIO, "foreign file"),
        (TorchCheckpointIO, "interrupted save"),
    ],
)
def test_a_writer_may_die_at_any_moment(path, kind, before):
    seen = set()
    for number in count(1):
        prepare(path, before, kind)
        if not dies_before_call(number, lambda: save(path, 2, kind)):
            break
        # Only a file that had no digest when the save began may still be without one.
        if before == "foreign file" and not path.with_name(".last.ckpt.digest").exists():
            seen.add(1)
        else:
            seen.add(found_step(path))
        check_the_next_save(path, kind)
    assert number > 20
    assert seen == ({None, 2} if before == "nothing" else {1, 2})


@IN_EACH_FORM
def test_a_remover_may_die_before_any_change(path, kind, monkeypatch):
    for number in count(1):
        prepare(path, "checkpoint", kind)
        with monkeypatch.context() as patches:
            faults = Faults(number)
            patch_disk(faults.is_due, BROKEN, patches)
            told = attempt(lambda: kind().remove_checkpoint(path, collectives=ALONE), "deleted")
        if not faults.has_struck:
            break
        assert found_step(path) in (None, 1), told
        save(path.with_name("other.ckpt"), 3, kind)
        assert [name for name in names(path.parent) if "last" in name] in ([], WHOLE[kind])
    assert number >= 3
    assert names(path.parent) == []


@IN_EACH_FORM
@ON_EACH_GROUND
def test_a_machine_may_crash_after_any_change_and_lose_what_was_not_synced(
    path, kind, before, tmp_path, monkeypatch
):
    prepare(path, before, kind)
    seen = set()
    states = crashes(
        path.parent, lambda: save(path, 2, kind), tmp_path / "found", monkeypatch, more_than=10
    )
    for found, has_returned in states:
        step = found_step(found / "last.ckpt")
        assert step == 2 or not has_returned, "a save that has returned is lost"
        seen.add(step)
    assert seen == ({None, 2} if before == "nothing" else {1, 2})


@IN_EACH_FORM
@ON_EACH_GROUND
@pytest.mark.parametrize("error", [BROKEN, OSError(errno.ENOSPC, "No space left")])
def test_any_change_may_fail(path, kind, before, error, monkeypatch):
    """Each change of the disk fails in turn, with all that come after it."""
    seen, old = set(), None if before == "nothing" else 1
    for told in failures(
        lambda: prepare(path, before, kind), lambda: save(path, 2, kind), error, monkeypatch
    ):
        assert found_step(path) == (2 if "is in its place" in told else old), told
        assert error.strerror in told, "and not what torch makes of it"
        seen.add(found_step(path))
        check_the_next_save(path, kind)
    assert seen == {old, 2}
    assert found_step(path) == 2, "what fails after that is no failed save"


def test_short_writes_are_completed(path, monkeypatch):
    class Short(io.FileIO):
        def write(self, data):
            return super().write(memoryview(data)[:700])

    monkeypatch.setattr(disk, "create", lambda path: io.BufferedWriter(Short(path, "xb"), 1000))
    save(path, 2)
    assert loaded_step(path) == 2


def test_a_file_that_fails_to_close_when_it_is_in_its_place_is_no_failed_save(path, monkeypatch):
    class Grumbling(io.BufferedWriter):
        def close(self):
            super().close()
            raise BROKEN

    save(path, 1, TorchCheckpointIO)
    with monkeypatch.context() as patches:
        patches.setattr(disk, "create", lambda path: Grumbling(path.open("xb", buffering=0)))
        save(path, 2, TorchCheckpointIO)
    assert loaded_step(path) == 2
    assert names(path.parent) == WHOLE[TorchCheckpointIO]


def test_a_digest_whose_file_is_gone_goes_with_the_next_save(path):
    for name in ("old.ckpt", "kept.ckpt"):
        save(path.with_name(name), 1, TorchCheckpointIO)
    path.with_name("old.ckpt").unlink()  # and the remover was killed
    path.with_name("somebody's.digest").write_text("a summary of the run")
    save(path, 2, TorchCheckpointIO)
    kept = [".kept.ckpt.digest", ".last.ckpt.digest", "kept.ckpt", "last.ckpt", "somebody's.digest"]
    assert names(path.parent) == kept


def test_a_living_writers_file_is_not_swept(path):
    """While one saves slowly, another saves to the same path: neither loses its file, and the last
    one counts.
    """

    def write(file):
        save(path, 1, TorchCheckpointIO)
        assert loaded_step(path) == 1
        file.write(b"slow")
        return digest.of_bytes(b"slow")

    LocalLocation(path).replace(write)
    assert path.read_bytes() == b"slow"
    check_the_next_save(path, TorchCheckpointIO)


def test_reading_while_others_replace_it_always_gives_a_whole_checkpoint(path):
    stop, seen = threading.Event(), set()

    def keep_saving(first):
        for step in count(first, 2):
            save(path, step, TorchCheckpointIO)
            if stop.is_set():
                return

    def read():
        seen.add(loaded_step(path))
        return len(seen) > 5

    save(path, 0, TorchCheckpointIO)
    writers = [threading.Thread(target=keep_saving, args=(first,)) for first in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        wait_until(read, "sixth checkpoint")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    loaded_step(path)
    assert names(path.parent) == WHOLE[TorchCheckpointIO]


def test_saves_of_other_programs_into_the_same_folder_leave_a_save_alone(path):
    others = [path.with_name(name) for name in ("epoch=1.ckpt", "epoch=2.ckpt")]
    descriptors = len(os.listdir("/proc/self/fd"))
    for step in (1, 2):
        pauses = Meanwhile(lambda: [save(other, 7) for other in others])
        save(path, step, collectives=pauses)
        assert pauses.num_pauses > 1
        assert loaded_step(path) == step
    assert names(path.parent) == ["epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]
    assert len(os.listdir("/proc/self/fd")) == descriptors, "a lock was left held"


def test_a_checkpoint_that_is_being_deleted_is_not_swept_too(path, monkeypatch):
    unlink, pauses = disk.unlink, []

    def slow(file):
        if not pauses:
            pauses.append(file)
            save(path.with_name("other.ckpt"), 2)
        unlink(file)

    save(path, 1)
    monkeypatch.setattr(disk, "unlink", slow)
    DistributedCheckpointIO().remove_checkpoint(path, collectives=ALONE)
    assert pauses
    assert names(path.parent) == ["other.ckpt"]


def test_a_folder_that_another_program_deletes_is_told_of(path):
    def delete():
        for partial in path.parent.glob(".*.partial"):
            shutil.rmtree(partial)

    with pytest.raises(CheckpointError) as raised:
        save(path, 1, collectives=Meanwhile(delete))
    assert re.fullmatch(
        rf"The checkpoint '{path}' can't be written: .*/\.last\.ckpt\..{{8}}\.partial was made by "
        rf"rank 0, and isn't on .* If it is shared, another program deletes in {path.parent}\. "
        r"What was there is untouched\.",
        str(raised.value),
    )


def test_a_sweep_deletes_a_link_and_not_what_it_leads_to(path):
    save(path, 1)
    path.with_name(".last.ckpt.0123abcd.partial").symlink_to(path.name)
    save(path.with_name("other.ckpt"), 2)
    assert loaded_step(path) == 1
    assert names(path.parent) == ["last.ckpt", "other.ckpt"]


def test_a_link_whose_place_can_not_be_taken_is_put_back(path, monkeypatch):
    def fail(old, new):
        raise BROKEN

    save(path.with_name("best.ckpt"), 1)
    path.symlink_to("best.ckpt")
    with monkeypatch.context() as patches:
        patches.setattr(disk, "rename", fail)
        assert "What was there is untouched" in attempt(lambda: save(path, 2))
    assert loaded_step(path) == 1
    save(path, 3)
    assert (loaded_step(path), loaded_step(path.with_name("best.ckpt"))) == (3, 1)
