import copy
import ctypes
import os
import sys
import threading
import warnings
from collections import Counter
from concurrent.futures import wait

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
)
from core.checkpoint.copies import staging
from core.checkpoint.storage import disk
from core.contract import CheckpointError, UnsupportedError
from core_testing import programs
from core_testing.waiting import slowness
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same

ALONE = Alone()


@pytest.mark.parametrize("inner", [None, TorchCheckpointIO()])
def test_what_was_saved_is_what_there_was_when_it_was_asked_for(tmp_path, inner):
    checkpoint_io = AsyncCheckpointIO(inner)
    assert checkpoint_io.layout == ("full" if inner else "sharded")
    weight, sparse = torch.zeros(100_000), torch.eye(3).to_sparse().coalesce()
    state = {
        "x": weight,
        "tied": weight,
        "view": weight[5:10],
        "array": np.zeros(1000),
        "bytes": bytearray(b"aaa"),
        "list": [1],
        "sparse": sparse,
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "large": torch.full((staging.LEAST_BYTES,), 1 + 2j).conj(),
    }
    expected = copy.deepcopy(state)  # of the conjugates, not what their memory says
    save_state(tmp_path / "a.ckpt", state, checkpoint_io)
    weight.fill_(-1)
    state["array"].fill(-1)
    state["bytes"][:] = b"bbb"
    state["list"].append(2)
    sparse.values().fill_(-1)
    loaded = checkpoint_io.load_checkpoint(tmp_path / "a.ckpt", collectives=ALONE)
    assert_same(loaded, expected)
    loaded["x"].fill_(7)
    assert loaded["tied"][0] == 7, "what shared memory goes on sharing it"
    checkpoint_io.teardown()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_state_is_copied_once_into_memory_that_is_kept_and_written_by_one_thread(
    tmp_path, monkeypatch, num_threads
):
    """By torch if it is small, and else by threads in pieces."""

    class counted_copies(TorchDispatchMode):
        """Numbers of torch's operations that write elements, by name."""

        def __enter__(self):
            self.counts = Counter()
            super().__enter__()
            return self.counts

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            self.counts[name] += name in ("copy_", "clone", "_to_copy", "contiguous")
            return function(*args, **(kwargs or {}))

    seen, copied, real = [], [], ctypes.memmove
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    monkeypatch.setattr(staging, "_BYTES_A_THREAD", 1 << 20)

    def memmove(target, source, num_bytes):
        copied.append((num_bytes, threading.current_thread()))
        real(target, source, num_bytes)

    class Spy(DistributedCheckpointIO):
        def save_checkpoint(self, state, path, *, collectives):
            seen.append([tensor.data_ptr() for tensor in state["tensors"]])
            assert (threading.current_thread().name, threading.active_count()) == (
                "checkpoint_0",
                before + 1,
            )
            super().save_checkpoint(state, path, collectives=collectives)

    monkeypatch.setattr(ctypes, "memmove", memmove)
    checkpoint_io = AsyncCheckpointIO(Spy())
    tensors = [
        torch.arange(2_000_000.0),
        torch.full((2_000_000,), 2.0, dtype=torch.bfloat16),
        torch.ones(3),
    ]
    before = threading.active_count()
    for step in range(3):
        copied.clear()
        with counted_copies() as counts:
            save_state(tmp_path / f"{step}.ckpt", {"tensors": tensors}, checkpoint_io)
        assert +counts == {"copy_": 1}
        assert sum(num_bytes for num_bytes, _ in copied) == 12_000_000
        assert len({thread for _, thread in copied}) <= num_threads
        checkpoint_io._wait()
    assert seen == [seen[0]] * 3
    assert not set(seen[0]) & {tensor.data_ptr() for tensor in tensors}
    assert all(map(torch.equal, load_checkpoint(tmp_path / "2.ckpt")["tensors"], tensors))
    checkpoint_io.teardown()


def test_saves_and_removals_keep_their_order(tmp_path):
    """`save_top_k=1`: while the new one isn't there, the old one stays."""

    class Gated(DistributedCheckpointIO):
        """Writes when it is allowed to."""

        def __init__(self):
            self.gate = threading.Event()
            self.log = []

        def save_checkpoint(self, state, path, *, collectives):
            self.gate.wait()
            super().save_checkpoint(state, path, collectives=collectives)
            self.log.append(("save", os.path.basename(path)))

        def remove_checkpoint(self, path, *, collectives):
            super().remove_checkpoint(path, collectives=collectives)
            self.log.append(("remove", os.path.basename(path)))

    gated = AsyncCheckpointIO(Gated())
    gated.checkpoint_io.gate.set()
    save_state(tmp_path / "1.ckpt", {"x": 1}, gated)
    gated._wait()
    gated.checkpoint_io.gate.clear()
    save_state(tmp_path / "2.ckpt", {"x": 2}, gated)
    gated.remove_checkpoint(tmp_path / "1.ckpt", collectives=ALONE)
    assert load_checkpoint(tmp_path / "1.ckpt") == {"x": 1}
    assert not (tmp_path / "2.ckpt").exists()
    # A name is taken, or free, from when that was asked for.
    assert gated.exists(tmp_path / "2.ckpt")
    assert not gated.exists(tmp_path / "1.ckpt")
    assert not gated.exists(tmp_path / "3.ckpt")
    gated.checkpoint_io.gate.set()
    assert gated.describe_checkpoint(tmp_path / "2.ckpt", collectives=ALONE) == {"x": 2}
    assert gated.checkpoint_io.log == [("save", "1.ckpt"), ("save", "2.ckpt"), ("remove", "1.ckpt")]
    assert os.listdir(tmp_path) == ["2.ckpt"]
    gated.teardown()


def test_a_process_that_is_forked_within_a_save_holds_up_no_later_one(tmp_path, monkeypatch):
    """As a loader's worker is, which lives on until the epoch ends."""
    rename, copies, (waits, ends) = disk.rename, [], os.pipe()

    def fork_and_rename(*paths):
        with warnings.catch_warnings():
            # from Python 3.12 on, of any thread
            warnings.simplefilter("ignore", DeprecationWarning)
            if not (copy := os.fork()):
                os.close(ends)
                os.read(waits, 1)
                os._exit(0)
        copies.append(copy)
        rename(*paths)

    monkeypatch.setattr(disk, "rename", fork_and_rename)
    checkpoint_io = AsyncCheckpointIO()
    save_state(tmp_path / "1.ckpt", {"x": 1}, checkpoint_io)
    checkpoint_io._wait()
    monkeypatch.undo()
    save_state(tmp_path / "2.ckpt", {"x": 2}, checkpoint_io)
    _, unfinished = wait([future for *_, future in checkpoint_io._pending], 20 * slowness())
    os.close(ends)
    for process in copies:
        os.waitpid(process, 0)
    os.close(waits)
    checkpoint_io.teardown()
    assert copies
    assert not unfinished


def test_an_error_of_the_writer_reaches_the_next_save_and_the_one_after_is_written(tmp_path):
    checkpoint_io = AsyncCheckpointIO()
    (tmp_path / "file").write_text("")
    save_state(tmp_path / "file" / "x.ckpt", {"x": 1}, checkpoint_io)
    with pytest.raises(CheckpointError, match=r"x.ckpt' can't be written: File exists"):
        save_state(tmp_path / "2.ckpt", {"x": 2}, checkpoint_io)
    save_state(tmp_path / "3.ckpt", {"x": 3}, checkpoint_io)
    checkpoint_io.teardown()
    assert load_checkpoint(tmp_path / "3.ckpt") == {"x": 3}


def test_a_state_that_cannot_be_saved_is_refused_at_once(tmp_path):
    checkpoint_io = AsyncCheckpointIO()
    with pytest.raises(CheckpointError, match=r"state\['x'\] is a builtins.object"):
        save_state(tmp_path / "x.ckpt", {"x": object()}, checkpoint_io)


def test_the_end_waits_and_tells_what_failed(tmp_path):
    def end_after_an_exception(checkpoint_io):
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            checkpoint_io.teardown()

    checkpoint_io = AsyncCheckpointIO()
    (tmp_path / "file").write_text("")
    save_state(tmp_path / "1.ckpt", {"x": torch.ones(1_000_000)}, checkpoint_io)
    checkpoint_io.teardown()
    assert load_checkpoint(tmp_path / "1.ckpt")["x"].sum() == 1_000_000
    save_state(tmp_path / "file" / "x.ckpt", {"x": 1}, checkpoint_io)
    with pytest.raises(CheckpointError, match="can't be written: File exists"):
        checkpoint_io.teardown()
    checkpoint_io.teardown()
    # After an exception, that one is what the user must see.
    save_state(tmp_path / "file" / "x.ckpt", {"x": 1}, checkpoint_io)
    with pytest.warns(
        UserWarning, match=r"that was being written is lost: .*x.ckpt' can't be written"
    ):
        end_after_an_exception(checkpoint_io)


def test_the_interpreters_end_waits(tmp_path):
    program = f"""
import torch
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same
from core.checkpoint import AsyncCheckpointIO
AsyncCheckpointIO().save_checkpoint({{"x": torch.ones(3_000_000)}}, {str(tmp_path / "x.ckpt")!r}, collectives=Alone())
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert programs.run([sys.executable, "-c", program], env=environment).returncode == 0
    assert load_checkpoint(tmp_path / "x.ckpt")["x"].sum() == 3_000_000


def test_ranks_that_cannot_talk_in_the_background_are_told(tmp_path):
    from core import Session, Strategy

    class Several(Strategy):
        from core import Capability

        capabilities = Capability.COLLECTIVES
        world_size = 2

    with pytest.raises(UnsupportedError, match="Several can't communicate in the background"):
        AsyncCheckpointIO().save_checkpoint(
            {}, tmp_path / "x.ckpt", collectives=Session(Several()).collectives
        )


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_trainer_that_saves_in_the_background(tmp_path, save_last):
    from core.callbacks import ModelCheckpoint
    from support.tiny import Tiny, loader, make_trainer

    checkpoint = ModelCheckpoint(
        tmp_path / "c", "{epoch}-{step}", every_n_train_steps=1, save_last=save_last
    )
    trainer = make_trainer(tmp_path, checkpoint, max_epochs=3, plugins="async")
    trainer.fit(Tiny(), loader(), loader())
    assert sorted(os.listdir(tmp_path / "c")) == ["epoch=2-step=12.ckpt", "last.ckpt"]
    assert load_checkpoint(tmp_path / "c" / "last.ckpt")["progress"]["global_step"] == 12
    assert load_checkpoint(checkpoint.best_model_path)["progress"]["global_step"] == 12
