"""Checkpoints behind fsspec: in memory, and on a real server that speaks S3."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import fsspec
import numpy as np
import pytest
import torch

from checkpoint_collectives import Alone
from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    SafetensorsCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
    verify_checkpoint,
)
from core.checkpoint.digest import BLOCK_BYTES
from core.contract import CheckpointCorruptedError, CheckpointNotFoundError

ALONE = Alone()


@pytest.fixture
def memory():
    yield "memory://run"
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/run"):
        filesystem.rm("/run", recursive=True)


@pytest.fixture(scope="module")
def server():
    """Address of a server on this machine, which has a bucket."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_ENDPOINT_URL": server,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    if not filesystem.exists("bucket"):
        filesystem.mkdir("bucket")
    yield "s3://bucket/run"
    filesystem.invalidate_cache()
    if filesystem.exists("bucket/run"):
        filesystem.rm("bucket/run", recursive=True)


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def url(request):
    return request.getfixturevalue(request.param)


def names(url):
    filesystem, path = fsspec.url_to_fs(url)
    filesystem.invalidate_cache()
    return sorted(name.rstrip("/").rpartition("/")[2] for name in filesystem.ls(path, detail=False))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestRemote:
    def test_a_folder_is_replaced_read_verified_and_removed(self, url):
        checkpoint_io, path = DistributedCheckpointIO(), f"{url}/last.ckpt"
        assert not checkpoint_io.exists(path)
        for step in range(2):
            large = torch.full((BLOCK_BYTES // 4 + 1000,), float(step))
            state = {"x": large, "a": np.full(2, step), "step": step, "last": torch.full((3,), step)}
            checkpoint_io.save_checkpoint(state, path, collectives=ALONE)
            loaded = checkpoint_io.load_checkpoint(path, collectives=ALONE)
            assert torch.equal(loaded["x"], large)
            assert (loaded["a"].tolist(), loaded["step"], loaded["last"].tolist()) == ([step] * 2, step, [step] * 3)
            assert len(names(path)) == 3
        target = torch.zeros_like(large)
        checkpoint_io.load_checkpoint(path, collectives=ALONE, state={"x": target})
        assert torch.equal(target, large)
        verify_checkpoint(path)
        assert newest_valid(url) == path
        self.damage(path)
        with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt/.*.data' is damaged between byte 0 and"):
            verify_checkpoint(path)
        with pytest.raises(CheckpointCorruptedError, match=r"last.ckpt/.*.data' is damaged"):
            load_checkpoint(path)
        with pytest.raises(CheckpointNotFoundError, match=r"In that folder are: last.ckpt"):
            load_checkpoint(f"{url}/lats.ckpt")
        checkpoint_io.remove_checkpoint(path, collectives=ALONE)
        assert not checkpoint_io.exists(path)

    def damage(self, path):
        filesystem, name = fsspec.url_to_fs(path)
        (data,) = (entry for entry in filesystem.ls(name, detail=False) if entry.endswith(".data"))
        content = bytearray(filesystem.cat_file(data))
        content[BLOCK_BYTES // 2] ^= 1
        filesystem.pipe_file(data, bytes(content))

    @pytest.mark.parametrize(
        ("checkpoint_io", "name"),
        [
            (TorchCheckpointIO(), "last.pt"),
            (SafetensorsCheckpointIO(), "last.safetensors"),
            (AsyncCheckpointIO(), "last.ckpt"),
        ],
    )
    def test_the_other_forms(self, url, checkpoint_io, name):
        path = f"{url}/{name}"
        for step in range(2):
            state = {"model": {"x": torch.full((3,), float(step))}}
            checkpoint_io.save_checkpoint(state, path, collectives=ALONE)
            assert checkpoint_io.load_checkpoint(path, collectives=ALONE)["model"]["x"].tolist() == [step] * 3
        assert checkpoint_io.exists(path)
        verify_checkpoint(path)
        checkpoint_io.remove_checkpoint(path, collectives=ALONE)
        checkpoint_io.teardown()
        assert not checkpoint_io.exists(path)
        DistributedCheckpointIO().save_checkpoint({}, f"{url}/other", collectives=ALONE)

    def test_a_trainer_saves_and_resumes_there(self, url, tmp_path):
        from callbacks.tiny import Tiny, loader, make_trainer
        from core.callbacks import ModelCheckpoint

        trainer = make_trainer(tmp_path, ModelCheckpoint(url, "{epoch}", save_last=True), max_epochs=2)
        trainer.fit(Tiny(), loader(), loader())
        assert names(url) == ["epoch=1.ckpt", "last.ckpt"]
        resumed = make_trainer(tmp_path, max_epochs=3)
        resumed.fit(Tiny(), loader(), loader(), ckpt_path=f"{url}/last.ckpt")
        assert resumed.global_step == 12
