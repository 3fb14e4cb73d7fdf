"""What must hold of checkpoints behind fsspec, whichever file system it is.

As a program: `remote_checks.py FOLDER` runs all checks on a server on this machine that speaks S3.
Libraries of object stores leave threads behind, which the process of the tests can't have when it
forks.
"""

import os
import sys
from pathlib import Path

import fsspec
import pytest
import torch

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
from core.contract import CheckpointCorruptedError, CheckpointNotFoundError
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same

ALONE = Alone()


def names(url):
    filesystem, path = fsspec.url_to_fs(url)
    filesystem.invalidate_cache()
    return sorted(name.rstrip("/").rpartition("/")[2] for name in filesystem.ls(path, detail=False))


def replace_read_verify_and_remove_a_folder(url, tmp_path):
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


def damage(path):
    filesystem, name = fsspec.url_to_fs(path)
    (data,) = (entry for entry in filesystem.ls(name, detail=False) if entry.endswith(".data"))
    content = bytearray(filesystem.cat_file(data))
    content[BLOCK_BYTES // 2] ^= 1
    filesystem.pipe_file(data, bytes(content))


def use_other_form(url, checkpoint_io, name):
    path = f"{url}/{name}"
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


def train_and_resume(url, tmp_path):
    from core.callbacks import ModelCheckpoint
    from support.tiny import Tiny, loader, make_trainer

    trainer = make_trainer(tmp_path, ModelCheckpoint(url, "{epoch}", save_last=True), max_epochs=2)
    trainer.fit(Tiny(), loader(), loader())
    assert names(url) == ["epoch=1.ckpt", "last.ckpt"]
    resumed = make_trainer(tmp_path, max_epochs=3)
    resumed.fit(Tiny(), loader(), loader(), ckpt_path=f"{url}/last.ckpt")
    assert resumed.global_step == 12


def use_the_other_forms(url, tmp_path):
    use_other_form(url, TorchCheckpointIO(), "last.pt")
    use_other_form(url, SafetensorsCheckpointIO(), "last.safetensors")
    use_other_form(url, AsyncCheckpointIO(), "last.ckpt")


CHECKS = [replace_read_verify_and_remove_a_folder, use_the_other_forms, train_and_resume]


def main(folder):
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
    for check in CHECKS:
        check(f"s3://bucket/{check.__name__}", folder)
        print(check.__name__)
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
