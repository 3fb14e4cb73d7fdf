"""A checkpoint folder on a local or mounted file system: how it is written beside its place and put there whole.

A new folder is renamed to its place, in one step. Where a checkpoint is already, the new files, which have names of
their own, are moved to it, and then the manifest, in one step, takes the place of the old one: until then they are
nothing. Whenever the process or the machine dies, the manifest that is there names files that are there, and synced.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from core.checkpoint import disk, locks, manifest
from core.checkpoint.verified_file import MappedFile
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")


class LocalFolder:
    """One checkpoint folder that the operating system reaches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / manifest.NAME

    def __str__(self) -> str:
        return str(self.path)

    def name_of(self, file: str) -> str:
        """Path of a file in it, for messages."""
        return str(self.path / file)

    # writing --------------------------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Rank 0. Sweep what dead writers have left beside it, and make a folder to write to.

        Returns:
            The save's own name, for `stage`.
        """
        self._refuse_foreign()
        parent = self.path.parent
        disk.make_parents(parent)
        token = secrets.token_hex(4)
        with locks.held(parent):
            sweep(parent)
            disk.make_folder(self._stage_path(token))
        return token

    @contextlib.contextmanager
    def stage(self, token: str) -> Iterator[None]:
        """All ranks. Keep the folder that `begin` made from being swept as long as this process writes to it."""
        path = self._stage_path(token)
        if not path.is_dir():
            raise CheckpointError(
                f"{path} was made by rank 0 and isn't here. Expected a file system that all ranks share."
            )
        with locks.held(path, shared=True):
            yield

    @contextlib.contextmanager
    def create(self, token: str, name: str) -> Iterator[BinaryIO]:
        """All ranks. A new file, synced at the end."""
        with disk.create(self._stage_path(token) / name) as file:
            yield file
            disk.sync(file)

    def commit(self, token: str, content: bytes, files: Iterable[str]) -> None:
        """Rank 0, when all files are there. Put them in place, and the manifest last.

        Args:
            token: of the save.
            content: of the manifest.
            files: names of the files that it names.
        """
        stage = self._stage_path(token)
        with self.create(token, manifest.NAME) as file:
            file.write(content)
        disk.sync_folder(stage)
        with locks.held(self.path.parent):
            if self.path.is_symlink():
                disk.unlink(self.path)
            try:
                disk.rename(stage, self.path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                self._move_in(stage, files)
            disk.sync_folder(self.path.parent)

    def _move_in(self, stage: Path, files: Iterable[str]) -> None:
        kept = set(files)
        for name in kept:
            disk.rename(stage / name, self.path / name)
        disk.sync_folder(self.path)
        disk.rename(stage / manifest.NAME, self.manifest_path)
        disk.sync_folder(self.path)
        for entry in list(self.path.iterdir()):
            if manifest.OWN_FILE.fullmatch(entry.name) and entry.name not in kept:
                disk.unlink(entry)
        disk.remove_folder(stage)

    def discard(self, token: str) -> None:
        """Rank 0. Delete what was written for a save that failed."""
        with contextlib.suppress(OSError):
            disk.remove_tree(self._stage_path(token))

    def remove(self) -> None:
        """Rank 0. Delete the checkpoint: it is gone in one step, and its files then."""
        if self.path.is_symlink():
            disk.unlink(self.path)
            return
        if not self.path.exists():
            return
        self._refuse_foreign()
        doomed = self._stage_path(secrets.token_hex(4))
        with locks.held(self.path.parent):
            disk.rename(self.path, doomed)
        disk.remove_tree(doomed)

    def _stage_path(self, token: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{token}.partial")

    def _refuse_foreign(self) -> None:
        """A folder that isn't a checkpoint may be full of somebody's work; a file may be another checkpoint."""
        if self.path.is_file() and not self.path.is_symlink():
            raise CheckpointError(
                "a file is there, and this CheckpointIO writes a folder; remove it, or save elsewhere"
            )
        if not self.path.is_dir() or self.manifest_path.exists():
            return
        foreign = sorted(entry.name for entry in self.path.iterdir() if not manifest.OWN_FILE.fullmatch(entry.name))
        if foreign:
            raise CheckpointError(f"it is a folder that isn't a checkpoint, with {foreign[0]!r} in it.")

    # reading --------------------------------------------------------------------------------------------------------

    def read_manifest(self) -> bytes:
        """Content of the manifest.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.manifest_path.read_bytes()

    def read(self, name: str) -> bytes:
        """Content of a small file."""
        return (self.path / name).read_bytes()

    def open(self, name: str, size_bytes: int, blocks: list[str]) -> MappedFile:
        """A large file, whose blocks are verified before their bytes are used."""
        path = self.path / name
        with path.open("rb") as file:
            actual = file.seek(0, 2)
            if actual != size_bytes:
                return MappedFile(str(path), memoryview(b""), size_bytes, blocks)
            # Private: what is written to a tensor on this memory stays in the process.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return MappedFile(str(path), memoryview(mapped), size_bytes, blocks)

    def exists(self) -> bool:
        """Whether a complete checkpoint is there, in whichever form."""
        return self.manifest_path.is_file() or self.path.is_file()

    def is_file(self) -> bool:
        """Whether a file is there: a checkpoint of another form."""
        return self.path.is_file()

    def is_folder(self) -> bool:
        """Whether a folder is there."""
        return self.path.is_dir()

    def siblings(self) -> list[str] | None:
        """Names of what lies beside it; None if its own folder doesn't exist."""
        try:
            return [entry.name for entry in self.path.parent.iterdir()]
        except OSError:
            return None


def sweep(folder: Path) -> None:
    """Delete what writers that died have left in a folder; what a living one holds a lock on stays."""
    for path in folder.iterdir():
        if _PARTIAL.fullmatch(path.name) and locks.is_free(path):
            with contextlib.suppress(OSError):
                disk.remove_tree(path) if path.is_dir() else disk.unlink(path)
