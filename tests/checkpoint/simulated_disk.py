"""A disk that loses what was not synced: the states in which a crash of the machine may leave a
folder.

What `core.checkpoint.storage.disk` does to a folder is recorded. A crash after the n-th change
keeps what was synced until then. Of the rest it may keep anything, but for this: changes of one
name come to the disk in order, and a rename whole or not at all.
"""

import io
import random
import shutil
from itertools import count
from pathlib import Path

import torch

from core.checkpoint.storage import disk
from core.contract import CheckpointError


class Folder:
    def __init__(self):
        self.names = {}


class File:
    def __init__(self, content=b""):
        self.writes, self.syncs = [(0, content)], [(0, len(content))]

    def crashed_content(self, time, chance):
        """What is left: all that was synced, and some of the rest, or zeros in its place."""
        written = b"".join(data for at, data in self.writes if at <= time)
        synced = max(size for at, size in self.syncs if at <= time)
        kept = chance.choice([synced, chance.randint(synced, len(written)), len(written)])
        return written[:kept] + bytes(chance.choice([0, len(written) - kept]))


class RecordedFile:
    """What `disk.create` returns, for the code under test."""

    def __init__(self, file, node, recorder):
        self.file, self.node, self.recorder = file, node, recorder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()

    def write(self, data):
        self.node.writes.append((self.recorder.tick(), bytes(data)))
        return self.file.write(data)


class Recorder:
    """Stands for the functions of `disk`, which it calls, from its making on.

    Attributes:
        time: number of changes so far.
    """

    def __init__(self, root, monkeypatch):
        self.root, self.time, self.real = Path(root), 0, {}
        self.tree = _scan(self.root)
        self.before = _copied(self.tree)
        self.changes = []  # of names: (time, {(folder, name): what has it then, or None})
        self.folder_syncs = []
        for name in (
            "create",
            "set_time",
            "sync",
            "sync_folder",
            "make_folder",
            "rename",
            "unlink",
            "remove_folder",
        ):
            self.real[name] = getattr(disk, name)
            monkeypatch.setattr(disk, name, getattr(self, name))

    def tick(self):
        self.time += 1
        return self.time

    def create(self, path):
        file, node = self.real["create"](path), File()
        self._change({self._place(path): node})
        return RecordedFile(file, node, self)

    def set_time(self, file, time_ns):
        self.real["set_time"](file.file, time_ns)

    def sync(self, file):
        self.real["sync"](file.file)
        file.node.syncs.append((self.tick(), sum(len(data) for _, data in file.node.writes)))

    def sync_folder(self, path):
        self.real["sync_folder"](path)
        self.folder_syncs.append((self.tick(), self._find(path)))

    def make_folder(self, path):
        self.real["make_folder"](path)
        self._change({self._place(path): Folder()})

    def unlink(self, path):
        was_there = path.exists()
        self.real["unlink"](path)
        if was_there:
            self._change({self._place(path): None})

    def remove_folder(self, path):
        self.real["remove_folder"](path)
        self._change({self._place(path): None})

    def rename(self, old, new):
        self.real["rename"](old, new)
        self._change({self._place(old): None, self._place(new): self._find(old)})

    def _change(self, places):
        self.changes.append((self.tick(), places))
        _apply(places, lambda folder: folder.names)

    def _place(self, path):
        return self._find(path.parent), path.name

    def _find(self, path):
        node = self.tree
        for part in Path(path).relative_to(self.root).parts:
            node = node.names[part]
        return node

    # after a crash --------------------------------------------------------------------------------

    def crash(self, time, seed, target):
        """Write to the folder `target` what may be found after a crash when `time` changes were
        made.
        """
        chance = random.Random(seed)
        state = {folder: dict(names) for folder, names in self.before.items()}
        for places in self._surviving(time, chance):
            _apply(places, lambda folder: state.setdefault(folder, {}))
        _write(self.tree, state, Path(target), lambda node: node.crashed_content(time, chance))

    def _surviving(self, time, chance):
        done = [change for change in self.changes if change[0] <= time]
        forced = self._forced(done, time)
        lost, kept = set(), []
        for change in done:
            _, places = change
            if change in forced or (not places.keys() & lost and chance.random() < 0.7):
                kept.append(places)
            else:
                lost |= places.keys()
        return kept

    def _forced(self, done, time):
        """Changes in folders that were synced later, and those of the same names before them."""
        synced = {folder: at for at, folder in self.folder_syncs if at <= time}
        forced, needed = [], set()
        for at, places in reversed(done):
            if places.keys() & needed or any(at <= synced.get(folder, 0) for folder, _ in places):
                forced.append((at, places))
                needed |= places.keys()
        return forced


def _apply(places, names_of):
    for (folder, name), node in places.items():
        if node is None:
            names_of(folder).pop(name)
        else:
            names_of(folder)[name] = node


def _scan(path):
    if path.is_file():
        return File(path.read_bytes())
    folder = Folder()
    folder.names = {entry.name: _scan(entry) for entry in path.iterdir()}
    return folder


def _copied(folder):
    """Names by folder, of all folders."""
    copied = {folder: dict(folder.names)}
    for node in folder.names.values():
        if isinstance(node, Folder):
            copied |= _copied(node)
    return copied


def _write(folder, state, target, content):
    target.mkdir()
    for name, node in state.get(folder, {}).items():
        if isinstance(node, File):
            (target / name).write_bytes(content(node))
        else:
            _write(node, state, target / name, content)


# what tests go through ----------------------------------------------------------------------------


def crashes(folder, work, target, monkeypatch, *, more_than):
    """Do the work, of more than so many changes; yield `target` for each state in which a crash may
    leave `folder`, and whether all was done."""
    with monkeypatch.context() as patches:
        recorder = Recorder(folder, patches)
        work()
    assert recorder.time > more_than
    for moment in range(recorder.time + 1):
        for seed in range(12):
            recorder.crash(moment, seed, target)
            yield target, moment == recorder.time
            shutil.rmtree(target)


def failures(prepare, work, error, monkeypatch):
    """For each change of the disk that fails the work, when that has failed and all that came after
    it: yield what was told. It ends with the first change without which the work is done all the
    same."""
    for number in count(1):
        prepare()
        with monkeypatch.context() as patches:
            patch_disk(Faults(number).is_due, error, patches)
            told = attempt(work)
        if not told:
            break
        yield told
    assert number > 8


def attempt(work, to_be="written"):
    """What it says when it fails; empty if it doesn't."""
    try:
        work()
    except CheckpointError as error:
        told = str(error)
        if "last.ckpt' is in its place, but may not survive a crash of the machine: " in told:
            assert "untouched" not in told
        else:
            assert f"last.ckpt' can't be {to_be}: " in told
            assert "What was there is untouched." in told or to_be == "deleted"
        return told
    return ""


class Faults:
    """Due at the n-th call, and at those after it, if the fault lasts; on any rank, or on one."""

    def __init__(self, number, *, lasts=True, victim=None):
        self._left, self._lasts, self._victim = number, lasts, victim
        self.has_struck = False

    def is_due(self):
        if self._victim is not None and torch.distributed.get_rank() != self._victim:
            return False
        self._left -= 1
        due = self._left == 0 or (self._lasts and self._left < 0)
        self.has_struck |= due
        return due


def failing(real, is_due, error):
    def call(*arguments, **options):
        if is_due():
            raise error
        return real(*arguments, **options)

    return call


def patch_disk(is_due, error, patches):
    """Let changes of the disk fail when they are due."""

    class Failing(io.BufferedWriter):
        write = failing(io.BufferedWriter.write, is_due, error)

    create = failing(lambda path: Failing(path.open("xb", buffering=0)), is_due, error)
    patches.setattr(disk, "create", create)
    for name in ("sync", "sync_folder", "make_folder", "rename", "unlink", "remove_folder"):
        patches.setattr(disk, name, failing(getattr(disk, name), is_due, error))
