"""Checkpoints behind fsspec: in memory, and on a real server that speaks S3."""

import os
import sys

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    SafetensorsCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
    verify_checkpoint,
)
from core.checkpoint.format.digest import BLOCK_BYTES
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from core_testing import programs
from support.checkout import KITS
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same

ALONE = Alone()
ON_S3 = "CHECKPOINTS_ON_S3"


@pytest.fixture(scope="module")
def bucket():
    """On a server on this machine that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket"
    server.stop()


@pytest.fixture
def url(request):
    """A folder in memory; in the process that `test_on_a_server_that_speaks_s3` starts, on S3."""
    if ON_S3 in os.environ:
        yield f"{request.getfixturevalue('bucket')}/{request.node.originalname}"
        return
    yield "memory://run"
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/run"):
        filesystem.rm("/run", recursive=True)


def names(url):
    filesystem, path = fsspec.url_to_fs(url)
    filesystem.invalidate_cache()
    return sorted(name.rstrip("/").rpartition("/")[2] for name in filesystem.ls(path, detail=False))


def test_a_folder_is_replaced_read_verified_and_removed(url):
    def damage(path):
        filesystem, name = fsspec.url_to_fs(path)
        (data,) = (entry for entry in filesystem.ls(name, detail=False) if entry.endswith(".data"))
        content = bytearray(filesystem.cat_file(data))
        content[BLOCK_BYTES // 2] ^= 1
        filesystem.pipe_file(data, bytes(content))

    checkpoint_io, path = DistributedCheckpointIO(), f"{url}/last.ckpt"
    assert not checkpoint_io.exists(path)
    for step in range(2):
        large = torch.full((BLOCK_BYTES // 4 + 1000,), float(step))
        state = {"x": large, "step": step, "last": torch.full((3,), step)}
        save_state(path, state, checkpoint_io)
        assert_same(checkpoint_io.load_checkpoint(path, collectives=ALONE), state)
        assert len(names(path)) == 3
    target = torch.zeros_like(large)
    checkpoint_io.load_checkpoint(path, collectives=ALONE, state={"x": target})
    assert torch.equal(target, large)
    verify_checkpoint(path)
    assert newest_valid(url) == path
    damage(path)
    for look in (verify_checkpoint, load_checkpoint):
        with pytest.raises(
            CheckpointCorruptedError, match=r"last.ckpt/.*.data' is damaged between byte 0 and"
        ):
            look(path)
    with pytest.raises(CheckpointNotFoundError, match=r"In that folder are: last.ckpt"):
        load_checkpoint(f"{url}/lats.ckpt")
    checkpoint_io.remove_checkpoint(path, collectives=ALONE)
    assert not checkpoint_io.exists(path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TorchCheckpointIO, "last.pt"),
        (SafetensorsCheckpointIO, "last.safetensors"),
        (AsyncCheckpointIO, "last.ckpt"),
    ],
)
def test_the_other_forms_are_replaced_verified_and_removed(url, kind, name):
    checkpoint_io, path = kind(), f"{url}/{name}"
    for step in range(2):
        state = {"model": {"x": torch.full((3,), float(step))}}
        save_state(path, state, checkpoint_io)
        assert (
            checkpoint_io.load_checkpoint(path, collectives=ALONE)["model"]["x"].tolist()
            == [step] * 3
        )
    assert checkpoint_io.exists(path)
    verify_checkpoint(path)
    checkpoint_io.remove_checkpoint(path, collectives=ALONE)
    checkpoint_io.teardown()
    assert not checkpoint_io.exists(path)


def test_a_run_saves_and_resumes(url, tmp_path):
    from core.callbacks import ModelCheckpoint
    from support.tiny import Tiny, loader, make_trainer

    trainer = make_trainer(tmp_path, ModelCheckpoint(url, "{epoch}", save_last=True), max_epochs=2)
    trainer.fit(Tiny(), loader(), loader())
    assert names(url) == ["epoch=1.ckpt", "last.ckpt"]
    resumed = make_trainer(tmp_path, max_epochs=3)
    resumed.fit(Tiny(), loader(), loader(), ckpt_path=f"{url}/last.ckpt")
    assert resumed.global_step == 12


@pytest.mark.slow
def test_on_a_server_that_speaks_s3(tmp_path):
    """The tests above. Whose answers fail: `benchmarks/s3_faults.py`.

    Libraries of object stores leave threads behind, which the process of the tests can't have when
    it forks.
    """
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    tests = (
        test_a_folder_is_replaced_read_verified_and_removed,
        test_the_other_forms_are_replaced_verified_and_removed,
        test_a_run_saves_and_resumes,
    )
    options = [
        "-q",
        "-W",
        "ignore",
        "-c",
        KITS,
        "-p",
        "no:cacheprovider",
        "--basetemp",
        tmp_path / "s3",
    ]
    done = programs.run(
        [*programs.PYTEST, *options, *(f"{__file__}::{each.__name__}" for each in tests)],
        env=os.environ | {ON_S3: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


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
