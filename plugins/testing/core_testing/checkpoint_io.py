"""The conformance suite of CheckpointIOs."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from core import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointIO,
    CheckpointNotFoundError,
    Chunk,
    CoreError,
    ShardedLeaf,
)
from core.strategies import ParallelStrategy
from core_testing.conformance import Conformance
from core_testing.ranks import Backend
from core_testing.saved_states import assert_same, large_state, small_state, varied_state
from core_testing.waiting import slowness

if TYPE_CHECKING:
    from collections.abc import Callable

    from core import Fabric
    from core_testing.ranks import Rank

_REMOVAL_S = 5
_NUM_KILLS = 4
# The first save is slower, since it imports; the second is timed, and the third killed.
_NUM_SAVES = 3


class CheckpointIOConformance(Conformance[CheckpointIO]):
    """All that a CheckpointIO must prove, on one rank and on two. Subclass it, and set `alias`.

    Attributes:
        timeout_s: after which ranks that hang fail their test.
        tests_that_save: what fails where no state, or not any, can be saved; for `known_failures`.
    """

    kind = "checkpoint io"
    timeout_s: ClassVar[float] = 60
    tests_that_save: ClassVar[tuple[str, ...]] = (
        "test_a_state_comes_back",
        "test_replaces_what_was_there",
        "test_makes_folders",
        "test_takes_urls",
        "test_leaves_no_temporary_files",
        "test_a_failing_save_leaves_what_was_there",
        "test_survives_a_kill",
        "test_damage_is_found",
        "test_nothing_is_executed",
        "test_removes",
        "test_teardown_is_idempotent",
    )

    @pytest.mark.parametrize("num_ranks", [1, 2])
    def test_a_state_comes_back(self, folder: Path, num_ranks: int) -> None:
        """Nested dicts and lists, tensors of every format and shape, plain types: equal, on the
        CPU, on all ranks.
        """
        assert all(self._run(_round_trip, num_ranks, folder / "state.ckpt"))

    def test_shards_come_back(self, folder: Path) -> None:
        """Of layout `sharded`, the chunks of all ranks are one tensor, read whole or into chunks
        again.
        """
        if self.make().layout != "sharded":
            pytest.skip(f"{self.alias} has layout {self.make().layout!r}")
        assert all(self._run(_round_trip_of_shards, 2, folder / "shards.ckpt"))

    def test_replaces_what_was_there(self, folder: Path) -> None:
        """A second save to the same path wins, whether it is shorter or longer."""
        assert all(self._run(_replace, 1, folder / "state.ckpt"))

    def test_makes_folders(self, folder: Path) -> None:
        """Missing folders on the way are made."""
        assert all(self._run(_save_and_load, 1, folder / "some" / "where" / "state.ckpt"))

    def test_takes_urls(self, folder: Path) -> None:
        """A URL that fsspec knows is as good as a path."""
        assert all(self._run(_save_and_load, 1, (folder / "state.ckpt").as_uri()))

    def test_leaves_no_temporary_files(self, folder: Path) -> None:
        """After a save, after a failed one, and after removing: nothing but the checkpoint is
        there.
        """
        assert all(self._run(_look_around, 1, folder))

    @pytest.mark.parametrize("num_ranks", [1, 2])
    def test_a_failing_save_leaves_what_was_there(self, folder: Path, num_ranks: int) -> None:
        """A save that can't be written is a CheckpointError on all ranks, and the checkpoint before
        it still loads.
        """
        assert all(self._run(_save_in_vain, num_ranks, folder / "state.ckpt"))

    def test_survives_a_kill(self, folder: Path) -> None:
        """Killed at any moment of a save, a process leaves a whole checkpoint: the old one, or the
        new one.
        """
        path = folder / "state.ckpt"
        self._run(_save_first, 1, path)
        for part in range(_NUM_KILLS):
            self._kill_while_saving(path, (part + 0.5) / _NUM_KILLS)
            assert all(self._run(_is_whole, 1, path))

    @pytest.mark.parametrize("num_ranks", [1, 2])
    def test_a_missing_checkpoint_is_said(self, folder: Path, num_ranks: int) -> None:
        """CheckpointNotFoundError on all ranks, and `exists` is False."""
        assert all(self._run(_load_nothing, num_ranks, folder / "nothing.ckpt"))

    @pytest.mark.parametrize("damage", ["shortened", "changed", "emptied"])
    def test_damage_is_found(self, folder: Path, damage: str) -> None:
        """Damage to any file of a checkpoint makes loading a CheckpointCorruptedError that names
        the path.
        """
        assert all(self._run(partial(_load_damaged, damage=damage), 1, folder))

    def test_nothing_is_executed(self, folder: Path) -> None:
        """A file that would run code when it is unpickled is refused, and the code doesn't run."""
        assert all(self._run(_load_malicious, 1, folder))

    def test_removes(self, folder: Path) -> None:
        """After `remove_checkpoint` it is gone, and to remove it again does nothing."""
        assert all(self._run(_remove, 1, folder / "state.ckpt"))

    def test_teardown_is_idempotent(self, folder: Path) -> None:
        """It finishes what is being written, may come twice, and before any save."""
        assert all(self._run(_tear_down, 1, folder / "state.ckpt"))

    def _run(self, function: Callable[..., Any], num_ranks: int, where: Any) -> list[Any]:
        # Several ranks are processes: a CheckpointIO may let threads talk to other ranks.
        is_alone = num_ranks == 1
        backend = Backend(
            ParallelStrategy,
            "cpu",
            num_ranks,
            num_ranks,
            timeout_s=self.timeout_s,
            in_process=is_alone,
        )
        return backend.run(partial(_with_fabric, self.make), function, where)

    def _kill_while_saving(self, path: Path, part: float) -> None:
        """Kill a child process when it has done this part of a save, by the time that the save
        before has taken.
        """
        begun, begins = os.pipe()
        if (child := os.fork()) == 0:
            self._save_until_killed(path, begins)
        os.close(begins)
        try:
            began_s = [time.monotonic() for _ in range(_NUM_SAVES) if os.read(begun, 1)]
            if len(began_s) == _NUM_SAVES:
                time.sleep(part * (began_s[-1] - began_s[-2]))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(begun)
        assert len(began_s) == _NUM_SAVES, "a save in a child process has failed"

    def _save_until_killed(self, path: Path, begins: int) -> None:
        """Save in a child process until it is killed; tell of each save that begins."""
        try:
            collectives = _Alone()
            for number in range(1, 1000):
                os.write(begins, b".")
                self.make().save_checkpoint(large_state(number), path, collectives=collectives)
        finally:
            os._exit(1)


class _Alone:
    """The collectives of a single process."""

    rank = 0
    size = 1
    writer: ClassVar[dict[str, Any]] = {}

    def barrier(self) -> None:
        pass

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return obj

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any]:
        return [obj]

    def in_background(self) -> _Alone:
        return self


def _with_fabric(make: Callable[[], CheckpointIO], rank: Rank, function: Any, where: Any) -> Any:
    fabric = rank.fabric()
    fabric.barrier()
    storage = make()
    result = function(storage, fabric, where)
    storage.teardown()
    fabric.teardown()
    return result


def _save(storage: CheckpointIO, fabric: Fabric, path: Any, state: dict[str, Any]) -> None:
    """Save as a strategy hands a state over: on rank 0, or on all ranks for shards."""
    writes = storage.layout == "sharded" or fabric.is_global_zero
    storage.save_checkpoint(state if writes else None, path, collectives=fabric.session.collectives)


def _load(storage: CheckpointIO, fabric: Fabric, path: Any) -> dict[str, Any]:
    return storage.load_checkpoint(path, collectives=fabric.session.collectives)


def _load_quietly(storage: CheckpointIO, fabric: Fabric, path: Any) -> dict[str, Any]:
    """Load without the warnings that a CheckpointIO may give besides, such as one of a missing
    digest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _load(storage, fabric, path)


def _round_trip(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    _save(storage, fabric, path, varied_state())
    assert_same(_load(storage, fabric, path), varied_state(), "state")
    assert not fabric.is_global_zero or storage.exists(path)
    return True


def _round_trip_of_shards(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    whole = torch.arange(24.0).view(4, 6)
    rank = fabric.global_rank
    rows = slice(0, 1) if rank == 0 else slice(1, 4)
    own = Chunk((rows.start, 0), (rows.stop - rows.start, 6), whole[rows].clone())
    _save(storage, fabric, path, {"weight": ShardedLeaf((4, 6), whole.dtype, (own,)), "epoch": 3})
    found = _load(storage, fabric, path)
    assert torch.equal(found["weight"], whole)
    assert found["epoch"] == 3
    # Saved by rows and read by columns, so that each rank's part comes from both ranks' files.
    columns = slice(0, 3) if rank == 0 else slice(3, 6)
    target = Chunk((0, columns.start), (4, 3), torch.zeros(4, 3))
    leaf = ShardedLeaf((4, 6), whole.dtype, (target,))
    storage.load_checkpoint(path, collectives=fabric.session.collectives, state={"weight": leaf})
    assert torch.equal(target.tensor, whole[:, columns])
    return True


def _replace(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    for size in (10, 100_000, 3):
        _save(storage, fabric, path, small_state(size, torch.ones(size)))
        assert _load(storage, fabric, path)["model"]["weight"].numel() == size
    return True


def _save_and_load(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    _save(storage, fabric, path, small_state(5))
    assert _load(storage, fabric, path)["number"] == 5
    return True


def _look_around(storage: CheckpointIO, fabric: Fabric, folder: Path) -> bool:
    path = folder / "state.ckpt"
    for number in range(3):
        _save(storage, fabric, path, small_state(number))
    _load(storage, fabric, path)  # and so what is written in the background is there
    # a digest may be hidden beside it
    names = {entry.name for entry in folder.iterdir()} - {f".{path.name}.digest"}
    assert all(name.startswith(path.name) for name in names), f"left in the folder: {sorted(names)}"
    before = _files(folder)
    with pytest.raises(CoreError):
        _save(storage, fabric, path, {**small_state(1), "number": lambda: None})
    # Of what an earlier save has replaced, some may only now be removed in the background.
    assert _files(folder) <= before, "a failed save has left files"
    assert _load(storage, fabric, path)["number"] == 2, "a failed save has replaced what was there"
    storage.remove_checkpoint(path, collectives=fabric.session.collectives)
    _wait_until_empty(folder)
    assert not _files(folder), f"left after removing: {sorted(_files(folder))}"
    return True


def _wait_until_empty(folder: Path) -> None:
    """Wait for files that are removed in the background, for a limited time."""
    end = time.monotonic() + _REMOVAL_S * slowness()
    while _files(folder) and time.monotonic() < end:
        time.sleep(0.01)


def _files(folder: Path) -> set[str]:
    # Not rglob: it fails on a folder that is removed in the background meanwhile.
    return {
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
    }


def _save_in_vain(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    _save(storage, fabric, path, small_state(1))
    with pytest.raises(CheckpointError):
        _save(storage, fabric, path, {**small_state(1), "number": lambda: None})
    assert _load(storage, fabric, path)["number"] == 1
    return True


def _save_first(storage: CheckpointIO, fabric: Fabric, path: Any) -> None:
    _save(storage, fabric, path, large_state(0))


def _is_whole(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    state = _load(storage, fabric, path)
    assert set(state["model"]["weight"].unique().tolist()) == {state["number"]}, (
        "a mixture of two checkpoints"
    )
    return True


def _load_nothing(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    with pytest.raises(CheckpointNotFoundError):
        _load(storage, fabric, path)
    assert not storage.exists(path)
    return True


def _load_damaged(storage: CheckpointIO, fabric: Fabric, folder: Path, *, damage: str) -> bool:
    original = folder / "original.ckpt"
    _save(storage, fabric, original, small_state(1, torch.arange(1000.0)))
    _load(storage, fabric, original)
    # A checkpoint may be several files, beside each other or in a folder: each is damaged in a copy
    # of all of them.
    for name in sorted(name for name in _files(folder) if name.startswith(original.name)):
        victim = folder / "victim"
        shutil.rmtree(victim, ignore_errors=True)
        victim.mkdir()
        for file in sorted(_files(folder)):
            if not file.startswith("victim"):
                (victim / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / file, victim / file)
        _damage(victim / name, damage)
        with pytest.raises(CheckpointCorruptedError, match="original"):
            _load_quietly(storage, fabric, victim / original.name)
    return True


def _damage(path: Path, damage: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :]
    path.write_bytes({"shortened": content[:middle], "changed": changed, "emptied": b""}[damage])


class _Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def _load_malicious(storage: CheckpointIO, fabric: Fabric, folder: Path) -> bool:
    path = folder / "state.ckpt"
    mark = folder / "executed"
    _save(storage, fabric, path, small_state(1))
    _load(storage, fabric, path)
    for file in [folder / name for name in _files(folder) if name.startswith(path.name)]:
        content = file.read_bytes()
        file.write_bytes(pickle.dumps(_Malicious(mark)))
        with pytest.raises(CheckpointError):
            _load_quietly(storage, fabric, path)
        assert not mark.exists(), f"code in {file.name} was executed"
        file.write_bytes(content)
    return True


def _remove(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    _save(storage, fabric, path, small_state(1))
    for _ in range(2):
        storage.remove_checkpoint(path, collectives=fabric.session.collectives)
        assert not storage.exists(path)
    return True


def _tear_down(storage: CheckpointIO, fabric: Fabric, path: Any) -> bool:
    storage.teardown()
    _save(storage, fabric, path, small_state(1))
    storage.teardown()
    storage.teardown()
    assert _load(storage, fabric, path)["number"] == 1
    return True
