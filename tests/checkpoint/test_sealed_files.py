"""Files whose digest stands within: no second file, the same care."""

import os

import pytest
import torch

from core import CheckpointCorruptedError
from core.checkpoint import TorchCheckpointIO, load_checkpoint, verify_checkpoint
from core.checkpoint.format import digest, seal

STATE = {"format": 1, "model": {"w": torch.arange(100.0)}, "text": "a"}


class SealedIO(TorchCheckpointIO):
    digest_within = True


def test_a_sealed_file_is_alone_and_torch_reads_it(tmp_path):
    path = tmp_path / "last.ckpt"
    SealedIO().write_file(STATE, path)
    assert os.listdir(tmp_path) == ["last.ckpt"]
    assert torch.equal(torch.load(path, weights_only=True)["model"]["w"], STATE["model"]["w"])
    assert torch.equal(
        torch.load(path, weights_only=True, mmap=True)["model"]["w"], STATE["model"]["w"]
    )
    assert torch.equal(load_checkpoint(path)["model"]["w"], STATE["model"]["w"])
    assert verify_checkpoint(path) is None
    with path.open("rb") as file:
        within = seal.read(file)
    assert within == digest.of_bytes(path.read_bytes()[:-46])


@pytest.mark.parametrize("place", [0.3, 0.6, -60, -1])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, place):
    path = tmp_path / "last.ckpt"
    SealedIO().write_file(STATE, path)
    content = bytearray(path.read_bytes())
    content[int(len(content) * place) if isinstance(place, float) else place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptedError, match="does not have the digest at its end"):
        load_checkpoint(path)


def test_one_form_replaces_the_other_and_both_are_verified(tmp_path):
    path = tmp_path / "last.ckpt"
    for kind, names in (
        (TorchCheckpointIO, [".last.ckpt.digest", "last.ckpt"]),
        (SealedIO, ["last.ckpt"]),
        (TorchCheckpointIO, [".last.ckpt.digest", "last.ckpt"]),
    ):
        kind().write_file(STATE, path)
        assert sorted(os.listdir(tmp_path)) == names
        assert load_checkpoint(path)["text"] == "a"


def test_a_digest_beside_that_a_killed_writer_has_left_does_not_count(tmp_path):
    path = tmp_path / "last.ckpt"
    SealedIO().write_file(STATE, path)
    (tmp_path / ".last.ckpt.digest").write_bytes(digest.to_text(["0" * 32]))
    assert load_checkpoint(path)["text"] == "a"


def test_a_url_has_no_second_file_either():
    import fsspec

    TorchCheckpointIO().write_file(STATE, "memory://sealed/last.ckpt")
    SealedIO().write_file(STATE, "memory://sealed/last.ckpt")
    names = fsspec.filesystem("memory").ls("/sealed", detail=False)
    assert names == ["/sealed/last.ckpt"]
    assert load_checkpoint("memory://sealed/last.ckpt")["text"] == "a"
