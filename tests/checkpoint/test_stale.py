"""What killed writers have left goes with the next run; what is whole, or alive, stays."""

import datetime
import json
import re

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from checkpoint.steps import names
from core.callbacks import ModelCheckpoint
from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
    sweep_folder,
    verify_checkpoint,
)
from core.checkpoint.any_form import dates
from core.checkpoint.format import manifest as manifest_module
from core.checkpoint.storage import locks
from core.checkpoint.storage.place import LocalPlace
from core.cli.commands import command
from support.checkpoint_collectives import save_state
from support.tiny import Tiny, loader, make_trainer


def save(path, step, kind=DistributedCheckpointIO):
    state = {"progress": {"global_step": step}, "x": torch.full((500,), float(step))}
    save_state(path, state, kind())


def damage(path):
    (data,) = path.glob("*.data")
    data.write_bytes(bytes(data.stat().st_size))


def leave(folder):
    """What saves and removals leave that are killed at their worst moments; beside it, something of
    the user's.
    """
    save(folder / "last.ckpt", 1)
    stage = folder / ".last.ckpt.01234567.partial"
    stage.mkdir()
    (stage / "01234567-00000.data").write_bytes(b"half")
    (folder / ".whole.pt.89abcdef.partial").write_bytes(b"half")
    (folder / ".gone.pt.digest").write_bytes(b"xxh3-128 " + b"0" * 32 + b"\n")
    # Moved in, and killed before the manifest was.
    (folder / "last.ckpt" / "01234567-00000.data").write_bytes(b"moved in")
    (folder / "last.ckpt" / "notes.txt").write_text("mine")
    (folder / "notes.partial").write_text("mine")


def check_swept(folder):
    assert names(folder) == ["last.ckpt", "notes.partial"]
    assert len(names(folder / "last.ckpt")) == 4, "three of the checkpoint, and the user's"
    assert load_checkpoint(folder / "last.ckpt")["progress"] == {"global_step": 1}


def test_a_sweep_takes_what_is_dead_and_nothing_else(tmp_path):
    leave(tmp_path)
    living = tmp_path / ".next.ckpt.0000aaaa.partial"
    living.mkdir()
    with locks.held(living, shared=True):  # as a save holds it
        sweep_folder(tmp_path)
        assert living.exists()
    sweep_folder(tmp_path)
    check_swept(tmp_path)
    sweep_folder(tmp_path / "nowhere")


def test_the_next_run_begins_with_a_clean_folder(tmp_path):
    """And not only its next save: this one saves nothing."""
    leave(tmp_path)
    trainer = make_trainer(tmp_path, ModelCheckpoint(tmp_path, every_n_epochs=100), max_steps=0)
    trainer.fit(Tiny(), loader(), loader())
    check_swept(tmp_path)


@pytest.mark.parametrize("kind", [DistributedCheckpointIO, AsyncCheckpointIO])
def test_retention_keeps_the_last_that_verifies(tmp_path, kind):
    """Each save from the second on is damaged when it is in its place, by a disk that says nothing
    of it.
    """

    class Lossy(DistributedCheckpointIO):
        def save_checkpoint(self, state, path, *, collectives):
            super().save_checkpoint(state, path, collectives=collectives)
            if "epoch=0" not in path:
                damage(tmp_path.joinpath(path))

    storage = Lossy() if kind is DistributedCheckpointIO else AsyncCheckpointIO(Lossy())
    trainer = make_trainer(
        tmp_path, ModelCheckpoint(tmp_path, "{epoch}"), plugins=storage, max_epochs=2
    )
    with pytest.warns(
        UserWarning,
        match=r"epoch=0.ckpt' is kept, though it was to be replaced: .*epoch=1.ckpt/.*is da",
    ):
        trainer.fit(Tiny(), loader(), loader())
    with pytest.warns(UserWarning, match="passes over what is no whole checkpoint"):
        assert newest_valid(tmp_path) == str(tmp_path / "epoch=0.ckpt")


def forget(monkeypatch):
    """As another process does, which hasn't saved or found anything yet."""
    monkeypatch.setattr(manifest_module, "_seen_ns", 0)
    monkeypatch.setattr(dates, "_looked_at", set())


@pytest.mark.parametrize("find", [newest_valid, lambda folder: load_checkpoint(f"{folder}/a.ckpt")])
@pytest.mark.parametrize("kind", [DistributedCheckpointIO, TorchCheckpointIO])
def test_the_newest_is_found_although_the_clock_has_jumped_back(tmp_path, monkeypatch, kind, find):
    """In this process, and in another that goes on from it: it has found it, or the user has named
    it.
    """
    save(tmp_path / "b.ckpt", 1, kind)
    monkeypatch.setattr(manifest_module.time, "time_ns", lambda: 1)
    save(tmp_path / "a.ckpt", 2, kind)
    assert newest_valid(tmp_path) == str(tmp_path / "a.ckpt")
    forget(monkeypatch)
    find(tmp_path)
    save(tmp_path / "0.ckpt", 3, kind)
    assert newest_valid(tmp_path) == str(tmp_path / "0.ckpt")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("here", DistributedCheckpointIO),
        ("here", TorchCheckpointIO),
        ("memory://set-back", DistributedCheckpointIO),
    ],
)
def test_the_newest_is_that_of_a_process_that_has_found_nothing(tmp_path, monkeypatch, place, kind):
    folder = tmp_path if place == "here" else place
    save(f"{folder}/b.ckpt", 1, kind)
    monkeypatch.setattr(manifest_module.time, "time_ns", lambda: 1)
    forget(monkeypatch)
    save(f"{folder}/a.ckpt", 2, kind)
    assert newest_valid(folder) == f"{folder}/a.ckpt"


# core checkpoint ls and gc ------------------------------------------------------------------------


@pytest.fixture
def run():
    from click.testing import CliRunner

    return lambda *arguments: CliRunner().invoke(
        command, ["checkpoint", *map(str, arguments)], env={"COLUMNS": "200"}
    )


def cells(done):
    assert done.exit_code == 0, done.output
    return [re.split(r"  +", line.strip()) for line in done.output.splitlines()]


def test_ls(run, tmp_path):
    save(tmp_path / "a.ckpt", 1200)
    save(tmp_path / "b.pt", 3, TorchCheckpointIO)
    save(tmp_path / "c.ckpt", 4)
    (tmp_path / "best.ckpt").symlink_to("a.ckpt")
    (tmp_path / "c.ckpt" / "manifest.json").unlink()
    found = {row[0].rpartition("/")[2]: row for row in cells(run("ls", tmp_path)) if len(row) == 5}
    assert sorted(found) == ["Checkpoint", "a.ckpt", "b.pt", "best.ckpt", "c.ckpt"]
    assert [found[name][1] for name in ("a.ckpt", "b.pt")] == ["1,200", "-"]
    assert found["a.ckpt"][3].endswith("KiB")
    assert [found[name][4] for name in ("a.ckpt", "best.ckpt", "c.ckpt")] == [
        "complete",
        "link",
        "damaged",
    ]
    assert "c.ckpt' is a folder without manifest.json" in run("ls", tmp_path).output
    damage(tmp_path / "a.ckpt")
    assert cells(run("ls", tmp_path / "a.ckpt"))[1][-1] == "complete", "of the right size"
    described = json.loads(run("ls", tmp_path, "--verify", "--json").output)
    states = {row["path"].rpartition("/")[2]: row["state"] for row in described}
    assert states == {
        "a.ckpt": "damaged",
        "b.pt": "verified",
        "best.ckpt": "link",
        "c.ckpt": "damaged",
    }


def test_ls_shows_a_link_that_leads_nowhere(run, tmp_path):
    (tmp_path / "newest").symlink_to("gone.ckpt")
    assert cells(run("ls", tmp_path))[1][-1] == "link"


def test_a_save_while_ls_looks_is_no_damage(run, tmp_path, monkeypatch):
    save(tmp_path / "last.ckpt", 1)
    real = LocalPlace.entries

    def entries(self):
        found = real(self)
        if self.name == "last.ckpt":
            monkeypatch.undo()
            save(tmp_path / "last.ckpt", 2)
        return found

    monkeypatch.setattr(LocalPlace, "entries", entries)
    _, step, *_, state = cells(run("ls", tmp_path))[1]
    assert (step, state) == ("2", "complete")


def test_ls_of_a_run_and_where_none_are(run, tmp_path):
    assert run("ls", tmp_path).output == "No checkpoints are there.\n"
    save(tmp_path / "checkpoints/d.ckpt", 5)
    assert run("ls", tmp_path).output == run("ls", tmp_path / "checkpoints").output
    done = run("ls", tmp_path / "nowhere")
    assert (done.exit_code, "There is no folder" in done.output) == (1, True)


def test_ls_shows_ages(run, tmp_path, monkeypatch):
    save(tmp_path / "a.ckpt", 1)
    saved_at_s = (
        json.loads((tmp_path / "a.ckpt" / "manifest.json").read_bytes())["saved_at_ns"] / 1e9
    )
    ages = {
        -61: "ahead of this clock",
        60: "60 s",
        7199: "120 min",
        7200: "2 h",
        172799: "48 h",
        172800: "2 d",
    }
    for age_s, shown in ages.items():
        monkeypatch.setattr("time.time", lambda age_s=age_s: saved_at_s + age_s)
        assert shown in cells(run("ls", tmp_path))[1]


def test_gc(run, tmp_path):
    leave(tmp_path)
    before = [*names(tmp_path), *names(tmp_path / "last.ckpt")]
    done = run("gc", tmp_path)
    assert done.output.endswith("would go. --delete deletes it.\n")
    assert done.output.count("would delete") == 4
    assert before == [*names(tmp_path), *names(tmp_path / "last.ckpt")]
    assert run("gc", tmp_path, "--delete").exit_code == 0
    check_swept(tmp_path)
    assert run("gc", tmp_path).output == "Nothing is left over.\n"


def test_gc_keeps_the_newest_that_verify(run, tmp_path):
    for step in range(5):
        save(tmp_path / f"{step}.ckpt", step)
    (tmp_path / "best.ckpt").symlink_to("0.ckpt")
    damage(tmp_path / "4.ckpt")
    assert run("gc", tmp_path, "--keep", 3).output.count("would delete") == 1
    assert run("gc", tmp_path, "--keep", 2, "--delete").exit_code == 0
    assert names(tmp_path) == ["0.ckpt", "2.ckpt", "3.ckpt", "best.ckpt"]
    for name in ("0.ckpt", "2.ckpt", "3.ckpt"):
        damage(tmp_path / name)
    assert run("gc", tmp_path, "--keep", 1).output == "Nothing is left over.\n"
    assert names(tmp_path) == ["0.ckpt", "2.ckpt", "3.ckpt", "best.ckpt"], (
        "none verifies, so none goes"
    )


@pytest.fixture
def store(monkeypatch):
    """A store of its own, with a checkpoint; what a save has left in it that is no more, or may
    still go on.
    """
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    save("memory://gc/last.ckpt", 1)
    filesystem = fsspec.filesystem("memory")
    for name in (
        "last.ckpt/01234567-00000.data",
        "next.ckpt/01234567-00000.data",
        "whole.pt.01234567.partial",
    ):
        filesystem.pipe_file(f"/gc/{name}", b"half")
    return filesystem


def test_gc_behind_a_url(run, store):
    """By the store's own times; files of a save that may still go on stay, unless the user says
    that none does.
    """
    assert run("gc", "memory://gc").output == "Nothing is left over.\n"
    assert run("gc", "memory://gc", "--stopped").output.count("would delete") == 3
    for name in ("last.ckpt/01234567-00000.data", "next.ckpt/01234567-00000.data"):
        store.store[f"/gc/{name}"].modified -= datetime.timedelta(days=2)
        store.store[f"/gc/{name}"].created -= datetime.timedelta(days=2)
    assert run("gc", "memory://gc", "--delete").output.count("delete  memory://gc/") == 2
    verify_checkpoint("memory://gc/last.ckpt")
    assert len(store.ls("/gc/last.ckpt")) == 3
    found = json.loads(run("ls", "memory://gc", "--json").output)
    assert [(row["path"], row["step"], row["state"]) for row in found] == [
        ("memory://gc/last.ckpt", 1, "complete")
    ]


def test_checkpoints_at_the_root_of_a_store(run, store):
    save("memory://last.ckpt", 2)
    (found,) = json.loads(run("ls", "memory://", "--json").output)
    assert newest_valid("memory://") == found["path"] == "memory://last.ckpt"


def test_gc_leaves_what_the_store_tells_no_age_of(run, store, monkeypatch):
    """Files that are listed without a time may be of a save that goes on."""
    real = MemoryFileSystem.ls

    def ls_without_times(self, path, detail=True, **options):
        entries = real(self, path, detail=True, **options)
        ageless = [
            {name: value for name, value in entry.items() if name != "created"} for entry in entries
        ]
        return ageless if detail else [entry["name"] for entry in entries]

    monkeypatch.setattr(MemoryFileSystem, "ls", ls_without_times)
    assert run("gc", "memory://gc").output == "Nothing is left over.\n"
    assert run("gc", "memory://gc", "--stopped").output.count("would delete") == 3
