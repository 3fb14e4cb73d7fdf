"""Folders that aren't whole checkpoints of core: what they are is said, and what reads them."""

import fsspec
import pytest
import torch

from core import CHECKPOINT_READER_REGISTRY, CheckpointCorruptedError, CheckpointReader, Fabric
from core.checkpoint import load_checkpoint
from core.cli.commands import command
from support.checkpoint_collectives import save_state

OURS = "no checkpoint of core, and nothing of it was damaged"


def refused(path):
    with pytest.raises(CheckpointCorruptedError) as caught:
        load_checkpoint(path)
    return str(caught.value)


def make(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def test_what_was_meant_is_to_be_named(tmp_path):
    message = refused(make(tmp_path / "theirs", "epoch=1.ckpt"))
    assert message.endswith(f"{OURS}. If something in it was meant, name that.")


def test_only_where_files_of_ours_are_a_save_did_not_end(tmp_path):
    path = tmp_path / "last.ckpt"
    save_state(path, {"x": torch.ones(2)})
    (path / "manifest.json").unlink()
    assert (
        "without manifest.json: a checkpoint that was never completed. Load an earlier checkpoint."
        in refused(path)
    )


def test_a_folder_of_a_store():
    fsspec.filesystem("memory").pipe("/theirs/config.json", b"{}")
    assert OURS in refused("memory://theirs")


def test_an_installed_reader_names_its_command(tmp_path):
    class AcmeReader(CheckpointReader):
        program = "Acme"

        def recognizes(self, head):
            return False

        def translate(self, saved):
            raise ValueError

        def recognizes_folder(self, path, names):
            return f"`acme read {path}` reads it." if "acme.bin" in names else None

    class BrokenReader(AcmeReader):
        def recognizes_folder(self, path, names):
            return names["acme.bin"]

    path = make(tmp_path / "theirs", "acme.bin", "part.pt")
    expected = f"{OURS}. It looks like Acme's. `acme read {path}` reads it."
    CHECKPOINT_READER_REGISTRY.register("a_broken_one", BrokenReader)
    CHECKPOINT_READER_REGISTRY.register("acme", AcmeReader)
    try:
        with pytest.warns(RuntimeWarning, match="'a_broken_one' .* was left out. TypeError"):
            assert refused(path).endswith(expected)
        with (
            pytest.warns(RuntimeWarning),
            pytest.raises(CheckpointCorruptedError, match="It looks like Acme's"),
        ):
            Fabric(accelerator="cpu").load(path, {})
    finally:
        CHECKPOINT_READER_REGISTRY.remove("a_broken_one")
        CHECKPOINT_READER_REGISTRY.remove("acme")


def test_the_command_line_says_so_too(tmp_path):
    from click.testing import CliRunner

    path = make(tmp_path / "theirs", "config.json")
    for done in (
        CliRunner().invoke(command, ["checkpoint", name, str(path)])
        for name in ("inspect", "verify")
    ):
        assert done.exit_code == 1
        assert OURS in f"{done.output}{done.exception}"
        assert "completed" not in done.output
        assert not done.output.startswith("damaged")
