"""A folder is the previous checkpoint, the new one, or a refusal that names it; whatever happens to its writer."""

import errno
import io
import os
import random
import re
import shutil
import signal
import time
from multiprocessing import Pipe

import pytest
import torch

from checkpoint.simulated_disk import attempt, crashes, failures
from checkpoint.test_replacing import dies_before_call, small_disk  # noqa: F401  # a fixture
from core.checkpoint import AsyncCheckpointIO, DistributedCheckpointIO, load_checkpoint, verify_checkpoint
from core.checkpoint.storage import disk
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from support.checkpoint_collectives import Alone

ALONE = Alone()
VALUES = 2_000


def state(step, values=VALUES):
    return {"step": step, "x": torch.full((values,), float(step)), "y": torch.full((values,), -float(step))}


def save(path, step):
    DistributedCheckpointIO().save_checkpoint(state(step), path, collectives=ALONE)


def loaded_step(path):
    """The step of the checkpoint, which is whole and has been verified."""
    loaded = load_checkpoint(path)
    expected = state(loaded["step"], len(loaded["x"]))
    assert torch.equal(loaded["x"], expected["x"])
    assert torch.equal(loaded["y"], expected["y"])
    verify_checkpoint(path)
    return loaded["step"]


def found_step(path):
    """Likewise; None if the checkpoint is refused by name, or isn't there."""
    try:
        return loaded_step(path)
    except (CheckpointNotFoundError, CheckpointCorruptedError) as error:
        return pytest.fail("the refusal names nothing") if path.name not in str(error) else None


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def prepare(path, before):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    if before == "checkpoint":
        save(path, 1)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "last.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_a_writer_may_die_before_any_change(path, before):
    number, seen = 0, set()
    while True:
        number += 1
        prepare(path, before)
        if not dies_before_call(number, lambda: save(path, 2)):
            break
        if path.exists():
            seen.add(loaded_step(path))
        else:
            assert before == "nothing"
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(path.parent) == ["last.ckpt"], "what the dead writer left was not swept"
        assert len(names(path)) == 3
    assert number > 20
    assert seen == ({2} if before == "nothing" else {1, 2})


def test_a_remover_may_die_before_any_change(path):
    number = 0
    while True:
        number += 1
        prepare(path, "checkpoint")
        remove = lambda: DistributedCheckpointIO().remove_checkpoint(path, collectives=ALONE)  # noqa: E731
        if not dies_before_call(number, remove):
            break
        assert not path.exists() or loaded_step(path) == 1
        save(path.with_name("other.ckpt"), 3)
        assert [name for name in names(path.parent) if name.startswith(".")] == []
    assert number > 3


@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_a_machine_may_crash_after_any_change_and_lose_what_was_not_synced(path, before, tmp_path, monkeypatch):
    prepare(path, before)
    seen = set()
    states = crashes(path.parent, lambda: save(path, 2), tmp_path / "found", monkeypatch, more_than=12)
    for found, has_returned in states:
        step = found_step(found / "last.ckpt")
        assert step is not None or before == "nothing"
        assert step == 2 or not has_returned, "a save that has returned is lost"
        seen.add(step)
    assert seen == ({None, 2} if before == "nothing" else {1, 2})


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("before", ["nothing", "checkpoint"])
def test_any_change_may_fail(path, before, error, monkeypatch):
    """Each change of the disk fails in turn, with all that come after it."""
    seen, old = set(), None if before == "nothing" else 1
    for told in failures(lambda: prepare(path, before), lambda: save(path, 2), error, monkeypatch):
        step = found_step(path)
        assert step == (2 if "is in its place" in told else old), told
        seen.add(step)
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(path.parent) == ["last.ckpt"]
    assert seen == {old, 2}
    assert found_step(path) == 2, "what fails after that is no failed save"


def test_short_writes_are_completed(path, monkeypatch):
    class Short(io.FileIO):
        def write(self, data):
            return super().write(memoryview(data)[:700])

    monkeypatch.setattr(disk, "create", lambda path: io.BufferedWriter(Short(path, "xb"), 1000))
    save(path, 2)
    assert loaded_step(path) == 2


def test_a_full_disk_leaves_the_previous_one(small_disk):  # noqa: F811
    path = small_disk / "last.ckpt"
    save(path, 1)
    with pytest.raises(CheckpointError, match="can't be written: No space left on device"):
        save(path, 2)
    assert loaded_step(path) == 1
    assert names(small_disk) == ["last.ckpt"]


def test_a_folder_that_is_read_only_leaves_the_previous_one(path):
    save(path, 1)
    path.parent.chmod(0o555)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.chdir(path.parent)
            if os.geteuid() == 0:
                os.setuid(65534)
            status = 0 if attempt(lambda: save(path.relative_to(path.parent), 2)) else 2
        finally:
            os._exit(status)
    _, outcome = os.waitpid(process, 0)
    path.parent.chmod(0o755)
    assert outcome == 0
    assert loaded_step(path) == 1


# Killed at random moments.


class Piped:
    """Two processes, forked from one, that talk through pipes."""

    size = 2
    writer = {}

    def __init__(self, rank, pipes):
        self.rank, self._pipes, self._mine = rank, pipes, pipes[0][rank]

    def barrier(self):
        self.broadcast_object(self.gather_objects(None) and None)

    def broadcast_object(self, obj, src=0):
        if self.rank == src:
            self._mine.send(obj)
            return obj
        return self._mine.recv()

    def gather_objects(self, obj, dst=0):
        if self.rank == dst:
            return [obj, self._mine.recv()]
        self._mine.send(obj)
        return None

    def in_background(self):
        return Piped(self.rank, self._pipes[1:])


def keep_saving(checkpoint_io, folder, first, collectives, report):
    """Saves to a name of its own each time, and then to one that is replaced; keeps two of the first."""
    step = first
    while True:
        checkpoint_io.save_checkpoint(state(step, 200_000), folder / f"step={step}.ckpt", collectives=collectives)
        checkpoint_io.save_checkpoint(state(step, 200_000), folder / "last.ckpt", collectives=collectives)
        # With a save in the background, the one before it is known to be complete.
        complete = step - isinstance(checkpoint_io, AsyncCheckpointIO)
        if collectives.rank == 0 and complete >= first:
            os.write(report, complete.to_bytes(4, "little"))
        checkpoint_io.remove_checkpoint(folder / f"step={step - 2}.ckpt", collectives=collectives)
        step += 1


def killed_while_saving(make_io, folder, first, num_ranks, delay_s, chance):
    """Fork writers, kill them after `delay_s`, and return the last step that they knew to be complete."""
    pipes = [Pipe(), Pipe()]
    reading, report = os.pipe()
    processes = []
    for rank in range(num_ranks):
        process = os.fork()
        if process == 0:
            try:
                collectives = Piped(rank, pipes) if num_ranks == 2 else ALONE
                keep_saving(make_io(), folder, first, collectives, report)
            finally:
                os._exit(1)
        processes.append(process)
    os.close(report)
    time.sleep(delay_s)
    chance.shuffle(processes)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)
    reported = b""
    while data := os.read(reading, 1 << 16):
        reported += data
    os.close(reading)
    for pipe in pipes:
        for end in pipe:
            end.close()
    return int.from_bytes(reported[-4:], "little") if reported else None


# At each moment in turn: `test_a_writer_may_die_before_any_change` for one rank, test_two_ranks_survive.py for two.
@pytest.mark.parametrize(
    ("make_io", "num_ranks"),
    [
        pytest.param(DistributedCheckpointIO, 1, marks=pytest.mark.exhaustive),
        pytest.param(AsyncCheckpointIO, 1, marks=pytest.mark.exhaustive),
        pytest.param(DistributedCheckpointIO, 2, marks=pytest.mark.exhaustive),
        pytest.param(AsyncCheckpointIO, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_at_50_random_moments(path, make_io, num_ranks):
    chance = random.Random(num_ranks)
    folder, known, first, interrupted, longest_s = path.parent, None, 1, 0, 0.25
    for _ in range(50):
        complete = killed_while_saving(make_io, folder, first, num_ranks, chance.uniform(0.01, longest_s), chance)
        known = complete if complete is not None else known
        longest_s *= 1 if known else 1.2  # a busy machine may need longer for one
        interrupted += any(name.startswith(".") for name in names(folder))
        found = {name: loaded_step(folder / name) for name in names(folder) if not name.startswith(".")}
        if known is not None:
            assert found["last.ckpt"] >= known, "a complete checkpoint was lost"
            assert max(step for name, step in found.items() if name != "last.ckpt") >= known
        first = max(found.values(), default=0) + 1
    assert interrupted, "no writer was killed in the middle"
    assert known
    save(path, first)
    assert not any(name.startswith(".") for name in names(folder)), "what dead writers left was not swept"


class Meanwhile(Alone):
    """Does something else in each pause of a save, which is where another program comes in."""

    def __init__(self, work):
        self.work, self.num_pauses = work, 0

    def broadcast_object(self, obj, src=0):
        self.num_pauses += 1
        self.work()
        return obj


def test_saves_of_other_programs_into_the_same_folder_leave_a_save_alone(path):
    others = [path.with_name(name) for name in ("epoch=1.ckpt", "epoch=2.ckpt")]
    descriptors = len(os.listdir("/proc/self/fd"))
    for step in (1, 2):
        pauses = Meanwhile(lambda: [save(other, 7) for other in others])
        DistributedCheckpointIO().save_checkpoint(state(step), path, collectives=pauses)
        assert pauses.num_pauses > 1
        assert loaded_step(path) == step
    assert names(path.parent) == sorted(["last.ckpt", *(other.name for other in others)])
    assert len(os.listdir("/proc/self/fd")) == descriptors, "a lock was left held"


def test_a_checkpoint_that_is_being_deleted_is_not_swept_too(path, monkeypatch):
    save(path, 1)
    unlink, pauses = disk.unlink, []

    def slow(file):
        if not pauses:
            pauses.append(file)
            save(path.with_name("other.ckpt"), 2)
        unlink(file)

    monkeypatch.setattr(disk, "unlink", slow)
    DistributedCheckpointIO().remove_checkpoint(path, collectives=ALONE)
    assert pauses
    assert names(path.parent) == ["other.ckpt"]


def test_a_folder_that_another_program_deletes_is_told_of(path):
    def delete():
        for partial in path.parent.glob(".*.partial"):
            shutil.rmtree(partial)

    with pytest.raises(CheckpointError) as raised:
        DistributedCheckpointIO().save_checkpoint(state(1), path, collectives=Meanwhile(delete))
    assert re.fullmatch(
        rf"The checkpoint '{path}' can't be written: .*/\.last\.ckpt\..{{8}}\.partial was made by rank 0, and isn't on "
        rf".* If it is shared, another program deletes in {path.parent}\. What was there is untouched\.",
        str(raised.value),
    )


def test_a_sweep_deletes_a_link_and_not_what_it_leads_to(path):
    save(path, 1)
    path.with_name(".last.ckpt.0123abcd.partial").symlink_to(path.name)
    save(path.with_name("other.ckpt"), 2)
    assert loaded_step(path) == 1
    assert names(path.parent) == ["last.ckpt", "other.ckpt"]


def test_a_link_whose_place_can_not_be_taken_is_put_back(path, monkeypatch):
    save(path.with_name("best.ckpt"), 1)
    path.symlink_to("best.ckpt")

    def fail(old, new):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patches:
        patches.setattr(disk, "rename", fail)
        with pytest.raises(CheckpointError, match="What was there is untouched"):
            save(path, 2)
    assert loaded_step(path) == 1
    save(path, 3)
    assert (loaded_step(path), loaded_step(path.with_name("best.ckpt"))) == (3, 1)
