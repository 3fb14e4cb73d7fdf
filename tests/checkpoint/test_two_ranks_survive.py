"""What fails, or dies, on either of two ranks at any call leaves the previous checkpoint or the new
one.
"""

import contextlib
import errno
import os
import shutil
import sys
from functools import partial
from itertools import count
from multiprocessing import Pipe

import pytest
import torch
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from checkpoint.simulated_disk import Faults, attempt, patch_disk
from checkpoint.steps import VALUES, Meanwhile, kill_before_call, loaded_step, names, save, state
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.checkpoint.any_form import formats
from core.checkpoint.format.verified_file import VerifiedFile
from core.checkpoint.storage import disk
from core.contract import CheckpointError, CheckpointNotFoundError, Chunk, ShardedLeaf
from support.checkpoint_collectives import together

HALF = VALUES // 2


def half_of(step, rank):
    """The state of one of two ranks: of each tensor, its half of the rows."""
    whole = state(step)
    for name in ("x", "y"):
        part = whole[name][rank * HALF : (rank + 1) * HALF]
        whole[name] = ShardedLeaf((VALUES,), torch.float32, (Chunk((rank * HALF,), (HALF,), part),))
    return whole


def save_half(path, step, collectives):
    DistributedCheckpointIO().save_checkpoint(
        half_of(step, collectives.rank), path, collectives=collectives
    )


def on_two_ranks(work):
    """Call `work(collectives)` on two ranks; what each was told, if anything."""
    return [str(told or "") for told in together(work)]


def save_together(path, step):
    """Save from two ranks; what each was told."""
    return on_two_ranks(lambda collectives: save_half(path, step, collectives))


def check_told(told, step, has_struck):
    """What both ranks say is what is there."""
    assert bool(told[0]) == bool(told[1]), told
    assert not told[0] or has_struck
    if not told[0]:
        assert step == 2
    elif "may be in its place" not in told[0]:
        assert step == (2 if "is in its place" in told[0] else 1), told


def check_all_faults(path, patch, prepare, least, **faulty):
    """Try the calls one after the other, until one is past the last."""
    failed = 0
    for number in count(1):
        prepare()
        save(path, 1)
        faults = Faults(number, **faulty)
        with pytest.MonkeyPatch.context() as patches:
            patch(faults.is_due, patches)
            told = save_together(path, 2)
        check_told(told, loaded_step(path), faults.has_struck)
        failed += bool(told[0])
        if not faults.has_struck:
            break
        assert save_together(path, 3) == ["", ""]
        assert loaded_step(path) == 3
    assert number > least
    assert failed > 1


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize(("victim", "least"), [(0, 15), (1, 4)])
def test_any_change_of_the_disk_may_fail_on_either_rank(tmp_path, victim, least, lasts):
    path = tmp_path / "run" / "last.ckpt"

    def prepare():
        if path.exists():
            assert names(path.parent) == ["last.ckpt"]
            assert len(names(path)) == 5
        shutil.rmtree(path.parent, ignore_errors=True)

    def patch(is_due, patches):
        patch_disk(is_due, OSError(errno.EIO, "Input/output error"), patches)

    check_all_faults(path, patch, prepare, least, victim=victim, lasts=lasts)


@pytest.fixture
def memory(monkeypatch):
    """An empty store."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])


class Url(str):
    """A URL with what the checks ask of a path."""

    __slots__ = ()

    @property
    def name(self):
        return self.rpartition("/")[2]


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize(("victim", "least"), [(0, 8), (1, 2)])
def test_any_call_of_a_store_may_fail_on_either_rank(memory, victim, least, lasts, is_lost):
    def patch_store(is_due, patches, is_lost):
        """Calls of an object store fail: before they have done anything, or when they have, and the
        answer is lost.
        """

        def losing(real):
            def call(*arguments, **options):
                due = is_due()
                if due and not is_lost:
                    raise OSError("the store is busy")
                result = real(*arguments, **options)
                if due:
                    raise OSError("the answer was lost")
                return result

            return call

        for name in (
            "pipe_file",
            "rm_file",
            "cat_file",
            "ls",
            "_open",
            "makedirs",
            "isfile",
            "exists",
        ):
            patches.setattr(MemoryFileSystem, name, losing(getattr(MemoryFileSystem, name)))

    path, clear = Url("memory://run/last.ckpt"), MemoryFileSystem.store.clear
    patch = partial(patch_store, is_lost=is_lost)
    check_all_faults(path, patch, clear, least, victim=victim, lasts=lasts)


@pytest.mark.parametrize(("victim", "least"), [pytest.param(0, 15, marks=pytest.mark.slow), (1, 8)])
def test_either_rank_may_die_before_any_call(tmp_path, victim, least):
    """The other one notices: its connection ends."""

    class Piped:
        """Two processes, forked from one, that talk through a pipe."""

        size = 2
        writer = {}

        def __init__(self, rank, pipe):
            self.rank, self._mine = rank, pipe[rank]

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

    def dies(path, victim, number):
        """Save from two processes, of which one kills itself before its n-th change; whether it got
        that far.
        """
        pipe, processes = Pipe(), []
        for rank in range(2):
            process = os.fork()
            if process == 0:
                status = 1
                try:
                    pipe[1 - rank].close()
                    if rank == victim:
                        kill_before_call(number)
                    with contextlib.suppress(CheckpointError, EOFError, OSError):
                        save_half(path, 2, Piped(rank, pipe))
                    status = 0
                finally:
                    sys.setprofile(None)
                    os._exit(status)
            processes.append(process)
        for end in pipe:
            end.close()
        outcomes = [os.waitpid(process, 0)[1] for process in processes]
        assert outcomes[1 - victim] == 0
        assert os.WIFSIGNALED(outcomes[victim]) or outcomes[victim] == 0
        return os.WIFSIGNALED(outcomes[victim])

    path = tmp_path / "last.ckpt"
    for number in count(1):
        shutil.rmtree(path, ignore_errors=True)
        save(path, 1)
        if not dies(path, victim, number):
            break
        assert loaded_step(path) in (1, 2)
        save(path, 3)
        assert loaded_step(path) == 3
        assert names(tmp_path) == ["last.ckpt"], "what the dead rank left was not swept"
        assert len(names(path)) == 3
    assert number > least
    assert loaded_step(path) == 2


def test_two_runs_save_to_one_place_behind_a_url(memory):
    """Neither deletes what the other is about to name, whichever is first."""
    path = Url("memory://run/last.ckpt")
    save(path, 1)
    # One has written its files, and is about to name them, when the other begins and ends.
    pauses = Meanwhile(lambda: pauses.num_pauses == 3 and save(path, 3))
    save(path, 2, collectives=pauses)
    assert pauses.num_pauses > 3
    assert loaded_step(path) == 2
    # One whose files are deleted while it writes doesn't replace what is there by a checkpoint
    # without them.

    def delete():
        for name in [name for name in MemoryFileSystem.store if name.endswith(".data")][1:]:
            del MemoryFileSystem.store[name]

    save(path, 1)
    with pytest.raises(
        CheckpointError,
        match=r"is gone: another program deletes in memory://run/last.ckpt\. What was",
    ):
        save(path, 2, collectives=Meanwhile(delete))
    assert loaded_step(path) == 1


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(
    "part", ["-00000.data", "-00001.data", "-00001.json", "manifest.json", ".partial"]
)
def test_what_is_there_goes_only_for_what_was_read_back(part, place, memory, tmp_path, monkeypatch):
    """A checkpoint that is saved again under its own name, as `last.ckpt` is, on storage that
    damages and is silent.
    """

    class SilentDamage:
        """Changes a bit of the first file that has a name, when it has been written, and says
        nothing of it.
        """

        def __init__(self, part, patches):
            self.part, self.num_struck = part, 0
            patches.setattr(
                disk, "sync", self._after(disk.sync, lambda file: self._strike(file.name, file))
            )
            if part == "manifest.json":  # it is read before it is written
                patches.setattr(
                    MemoryFileSystem,
                    "pipe_file",
                    self._after(MemoryFileSystem.pipe_file, self._strike_piped),
                )
            else:
                patches.setattr(MemoryFile, "close", lambda file: self._strike(file.path, file))

        def _after(self, real, strike):
            def call(*arguments, **options):
                real(*arguments, **options)
                strike(*arguments)

            return call

        def _strike(self, name, file):
            if self.part not in str(name) or self.num_struck:
                return
            self.num_struck += 1
            if isinstance(file, MemoryFile):
                file.getbuffer()[file.size // 2] ^= 1
                return
            with open(name, "r+b") as again:
                again.seek(os.path.getsize(name) // 2)
                byte = again.read(1)[0]
                again.seek(-1, os.SEEK_CUR)
                again.write(bytes([byte ^ 1]))

        def _strike_piped(self, filesystem, name, content):
            self._strike(name, filesystem.store[name])

    path = Url("memory://run/last.ckpt") if place == "memory" else tmp_path / "last.ckpt"

    def save_again(step):
        if part == ".partial":
            return [attempt(lambda: save(path, step, TorchCheckpointIO))]
        return save_together(path, step)

    assert not any(save_again(1))
    with monkeypatch.context() as patches:
        damage = SilentDamage(part, patches)
        told = save_again(2)
    assert damage.num_struck == 1
    assert all(
        "something else comes back when it is read. What was there is untouched." in each
        for each in told
    ), told
    assert loaded_step(path) == 1
    assert not any(save_again(3))
    assert loaded_step(path) == 3


@pytest.fixture
def read_back(monkeypatch):
    """Ranks and the ends of the files that they have read back."""
    seen, real = [], VerifiedFile.verify

    def verify(file, start, stop):
        seen.append((torch.distributed.get_rank(), file.path[-10:]))
        real(file, start, stop)

    monkeypatch.setattr(VerifiedFile, "verify", verify)
    return seen


def retire(path, successor):
    storage = DistributedCheckpointIO()
    told = on_two_ranks(
        lambda collectives: storage.retire_checkpoint(path, successor, collectives=collectives)
    )
    assert told == ["", ""]


def test_each_rank_reads_back_what_it_wrote_before_what_is_replaced_goes(tmp_path, read_back):
    old, new, newer = (tmp_path / name for name in ("1.ckpt", "2.ckpt", "3.ckpt"))
    for step, path in enumerate((old, new, newer)):
        assert save_together(path, step) == ["", ""]
    retire(old, new)
    assert sorted(read_back) == [(0, "00000.data"), (1, "00001.data")]
    assert names(tmp_path) == ["2.ckpt", "3.ckpt"]
    (data,) = newer.glob("*-00001.data")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.warns(
        UserWarning, match=r"2.ckpt' is kept, .*: On rank 1: .*3.ckpt/.*-00001.data' is damaged"
    ):
        retire(new, newer)
    assert names(tmp_path) == ["2.ckpt", "3.ckpt"]


def test_what_another_machines_file_system_does_not_show_yet_is_no_damage(
    tmp_path, read_back, monkeypatch
):
    """Rank 0 reads all."""
    real = formats.verify_checkpoint

    def verify(path, progress=None, share=None):
        if share == (1, 2):
            raise CheckpointNotFoundError(f"There is no checkpoint {path}.")
        real(path, progress, share)

    monkeypatch.setattr(formats, "verify_checkpoint", verify)
    for name in ("1.ckpt", "2.ckpt"):
        assert save_together(tmp_path / name, 1) == ["", ""]
    read_back.clear()
    retire(tmp_path / "1.ckpt", tmp_path / "2.ckpt")
    assert sorted(read_back) == [(0, "00000.data"), (0, "00000.data"), (0, "00001.data")]
    assert names(tmp_path) == ["2.ckpt"]
