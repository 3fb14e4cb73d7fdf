"""The base for checkpoints in an engine's own layout, without an engine."""

import pytest

from core import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from core.checkpoint import EngineFolderIO, reported_as_damage
from support.checkpoint_collectives import Alone


class AcmeFolderIO(EngineFolderIO):
    engine = "Acme"
    last_file = "done"
    how_to_save = "Acme writes it: use AcmeStrategy()."

    def load_checkpoint(self, path, *, collectives, state=None):
        self.require(path)
        return {"text": (path / "done").read_text()}


def checkpoint(folder):
    folder.mkdir()
    (folder / "done").write_text("whole")
    return folder


def test_a_folder_is_a_checkpoint_once_its_last_file_is_there(tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()
    assert not AcmeFolderIO().exists(folder)
    with pytest.raises(
        CheckpointNotFoundError, match=r"No Acme checkpoint is at .*begun'.* the file 'done'"
    ):
        AcmeFolderIO().load_checkpoint(folder, collectives=Alone())
    assert AcmeFolderIO().exists(checkpoint(tmp_path / "whole"))
    assert AcmeFolderIO().load_checkpoint(tmp_path / "whole", collectives=Alone()) == {
        "text": "whole"
    }


def test_saving_says_what_writes_such_folders(tmp_path):
    with pytest.raises(CheckpointError, match=r"Acme writes it: use AcmeStrategy\(\)"):
        AcmeFolderIO().save_checkpoint({}, tmp_path / "new", collectives=Alone())


def test_its_own_folder_is_removed_and_nothing_else(tmp_path):
    AcmeFolderIO().remove_checkpoint(checkpoint(tmp_path / "own"), collectives=Alone())
    AcmeFolderIO().remove_checkpoint(tmp_path / "nothing", collectives=Alone())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "photos").mkdir()
    with pytest.raises(
        CheckpointError,
        match=r"photos' is no Acme checkpoint, and stays as it is\. Save to another path",
    ):
        AcmeFolderIO().remove_checkpoint(tmp_path / "photos", collectives=Alone())
    assert (tmp_path / "photos").is_dir()


def test_what_fails_on_a_strangers_content_is_damage_and_an_error_of_core_stays():
    whole_message = r"^'a' isn't ours: KeyError\('b'\)\.$"
    with (
        pytest.raises(CheckpointCorruptedError, match=whole_message),
        reported_as_damage("'a' isn't ours"),
    ):
        raise KeyError("b")
    with (
        pytest.raises(CheckpointNotFoundError, match=r"^nothing$"),
        reported_as_damage("'a' isn't ours"),
    ):
        raise CheckpointNotFoundError("nothing")
