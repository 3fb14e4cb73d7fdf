"""Checkpoints behind fsspec: in memory, and on a real server that speaks S3."""

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from checkpoint.remote_checks import CHECKS
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO, load_checkpoint
from core.contract import CheckpointError
from support.checkpoint_collectives import save_state


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_memory(check, tmp_path):
    filesystem = fsspec.filesystem("memory")
    try:
        check("memory://run", tmp_path)
    finally:
        if filesystem.exists("/run"):
            filesystem.rm("/run", recursive=True)


def test_a_tensor_that_does_not_lie_in_one_piece_is_filled(lossy):
    whole = torch.arange(12.0).view(3, 4)
    save_state("memory://run/last.ckpt", {"w": whole})
    target = torch.zeros(4, 3).t()
    load_checkpoint("memory://run/last.ckpt", {"w": target})
    assert torch.equal(target, whole)


@pytest.fixture
def lossy(monkeypatch):
    """A store of its own whose calls, once named, do what they are asked to, or read nothing, and
    fail all the same.
    """
    lost = set()

    def losing(name, method):
        def call(self, path, *arguments, **options):
            if name not in lost or "digest" in path or "wb" in (*arguments, options.get("mode")):
                return method(self, path, *arguments, **options)
            if name not in ("cat_file", "_open"):
                method(self, path, *arguments, **options)
            raise OSError("the answer was lost")

        return call

    with monkeypatch.context() as patches:
        patches.setattr(MemoryFileSystem, "store", {})
        patches.setattr(MemoryFileSystem, "pseudo_dirs", [""])
        for name in ("pipe_file", "mv", "rm_file", "cat_file", "_open"):
            patches.setattr(MemoryFileSystem, name, losing(name, getattr(MemoryFileSystem, name)))
        yield lambda *names: (lost.clear(), lost.update(names))


@pytest.mark.parametrize("kind", [DistributedCheckpointIO, TorchCheckpointIO])
def test_a_save_whose_answer_is_lost_has_happened_all_the_same(lossy, kind):
    checkpoint_io, path = kind(), "memory://run/last.ckpt"
    save_state(path, {"step": 1}, checkpoint_io)
    for step, lost in enumerate(
        [("pipe_file",), ("mv",), ("rm_file",), ("pipe_file", "mv", "rm_file")], 2
    ):
        lossy(*lost)
        save_state(path, {"step": step}, checkpoint_io)
        assert load_checkpoint(path) == {"step": step}


@pytest.mark.parametrize("kind", [DistributedCheckpointIO, TorchCheckpointIO])
def test_a_save_that_can_not_be_told_to_have_happened_does_not_claim_that_it_has_not(lossy, kind):
    checkpoint_io, path = kind(), "memory://run/last.ckpt"
    lossy("pipe_file", "mv", "cat_file", "_open")
    with pytest.raises(CheckpointError) as raised:
        save_state(path, {"step": 2}, checkpoint_io)
    assert str(raised.value) == (
        f"The checkpoint '{path}' may be in its place, and can't be read back: OSError: the answer "
        "was lost. Look after the storage, and save again."
    )
    lossy()
    assert load_checkpoint(path) == {"step": 2}, "what the manifest names was deleted"


def test_what_can_not_be_put_back_is_not_said_to_be_as_it_was(lossy, monkeypatch):
    path, real = "memory://run/last.ckpt", MemoryFileSystem.pipe_file
    save_state(path, {"step": 1})

    def damage(self, path, value, **options):
        lossy()
        real(self, path, value[:-5], **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", damage)
    lossy("cat_file")
    with pytest.raises(CheckpointError, match="is in its place, and its manifest is damaged: File"):
        save_state(path, {"step": 2})


@pytest.mark.slow
def test_on_a_server_that_speaks_s3(tmp_path):
    """Whose answers fail: `benchmarks/s3_faults.py`."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    command = [sys.executable, str(Path(__file__).with_name("remote_checks.py")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [check.__name__ for check in CHECKS]
