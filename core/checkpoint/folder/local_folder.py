"""A checkpoint folder on a local or mounted file system: how it is written beside its place and put
there whole.

A new folder is renamed to its place, in one step. Where a checkpoint is already, the new files,
which have names of their own, are moved to it, and then the manifest, in one step, takes the place
of the old one: until then they are nothing. Whenever the process or the machine dies, the manifest
that is there names files that are there, and synced.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from core.checkpoint.folder import left_over
from core.checkpoint.folder.any_folder import AnyFolder
from core.checkpoint.format import manifest
from core.checkpoint.format.verified_file import VerifiedFile
from core.checkpoint.storage import disk, locks, messages
from core.checkpoint.storage.disk import partial_path
from core.checkpoint.storage.place import LocalPlace
from core.contract.errors import CheckpointError
from core.text import plain_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from core.checkpoint.format.digest import Blocks


class LocalFolder(AnyFolder):
    """One checkpoint folder that the operating system reaches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = LocalPlace(path)
        self.manifest_path = path / manifest.NAME

    @contextlib.contextmanager
    def begin(self) -> Iterator[str]:
        """Rank 0. Sweep what dead writers have left beside it, and make a folder to write to.

        Its lock is taken before another process may sweep, and held until the end.

        Yields:
            The save's own name, for `stage`.
        """
        self._refuse_foreign()
        parent = self.path.parent
        disk.make_parents(parent)
        token = secrets.token_hex(4)
        stage = partial_path(self.path, token)
        with contextlib.ExitStack() as stack:
            with locks.held(parent):
                left_over.sweep(parent)
                disk.make_folder(stage)
                stack.enter_context(locks.held(stage, shared=True))
            yield token

    @contextlib.contextmanager
    def stage(self, token: str) -> Iterator[None]:
        """All ranks. Keep the folder that `begin` made from being swept, also if rank 0 dies before
        this process.
        """
        path = partial_path(self.path, token)
        if not path.is_dir():
            raise CheckpointError(
                f"{path.absolute()} was made by rank 0, and isn't on {socket.gethostname()}, where "
                "another rank has to write its part. Save to a folder that all nodes share, under "
                "the same absolute path (dirpath=..., or default_root_dir=...), to a URL such as "
                "s3://bucket/run, or whole and through rank 0 with plugins='torch'. If it is "
                f"shared, another program deletes in {path.parent}."
            )
        with locks.held(path, shared=True):
            yield

    @contextlib.contextmanager
    def create(self, token: str, name: str) -> Iterator[BinaryIO]:
        """All ranks. A new file, synced at the end."""
        with disk.create(partial_path(self.path, token) / name) as file:
            yield file
            disk.sync(file)

    def written(self, token: str, name: str) -> LocalPlace:
        """The place of a file that was created."""
        return LocalPlace(partial_path(self.path, token) / name)

    def commit(self, token: str, content: bytes, files: Iterable[str]) -> None:
        """Rank 0, when all files are there. Move them into place, and the manifest last.

        Args:
            token: of the save.
            content: of the manifest.
            files: names of the files that it names.
        """
        stage = partial_path(self.path, token)
        with self.create(token, manifest.NAME) as file:
            file.write(content)
        if (stage / manifest.NAME).read_bytes() != content:
            raise messages.not_as_written(manifest.NAME)
        # The names of the files, before the rename that makes them a checkpoint.
        disk.sync_folder(stage)
        with locks.held(self.path.parent):
            try:
                with self._link_aside():
                    disk.rename(stage, self.path)
            except OSError as error:
                # POSIX leaves the choice between these two to the system.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # A checkpoint is there already: no system call puts a folder in the place of a full
                # one.
                self._move_in(stage, files)
            with messages.in_place():
                disk.sync_folder(self.path.parent)

    @contextlib.contextmanager
    def _link_aside(self) -> Iterator[None]:
        """Rename a link that is in a folder's way: no folder replaces it in one step. After a
        failure it is back.
        """
        if not self.path.is_symlink():
            yield
            return
        target = os.readlink(self.path)
        disk.unlink(self.path)
        try:
            yield
        except OSError:
            self.path.symlink_to(target)
            raise

    def _move_in(self, stage: Path, files: Iterable[str]) -> None:
        kept = set(files)
        # First the files, under names that no reader looks for yet.
        for name in kept:
            disk.rename(stage / name, self.path / name)
        # before the manifest, or a crash could leave it without the files that it names
        disk.sync_folder(self.path)
        disk.rename(stage / manifest.NAME, self.manifest_path)
        with messages.in_place():
            disk.sync_folder(self.path)
        # Last what the old manifest named: until here a reader may have needed it.
        with contextlib.suppress(OSError):  # the next save does it
            for entry in list(self.path.iterdir()):
                if manifest.OWN_FILE.fullmatch(entry.name) and entry.name not in kept:
                    disk.unlink(entry)
            disk.remove_folder(stage)

    def discard(self, token: str) -> None:
        """Rank 0. Delete what was written for a save that failed."""
        with contextlib.suppress(OSError):
            disk.remove_tree(partial_path(self.path, token))

    def remove(self) -> None:
        """Rank 0. Delete the checkpoint: it is gone in one step, and its files then."""
        if self.path.is_symlink():
            disk.unlink(self.path)
            return
        if not self.path.exists():
            return
        self._refuse_foreign()
        obsolete = partial_path(self.path, secrets.token_hex(4))
        with contextlib.ExitStack() as stack:
            with locks.held(self.path.parent):
                # Under a name that a sweep deletes, in case this process dies before it has.
                disk.rename(self.path, obsolete)
                # or else another's sweep deletes it at the same time
                stack.enter_context(locks.held(obsolete))
            disk.remove_tree(obsolete)

    def _refuse_foreign(self) -> None:
        """Refuse a folder that isn't a checkpoint, as it may hold other work, and a file, which may
        be a checkpoint.
        """
        if self.path.is_file() and not self.path.is_symlink():
            raise CheckpointError(
                "a file is there, and this CheckpointIO writes a folder; remove it, or save "
                "elsewhere"
            )
        if not self.path.is_dir() or self.manifest_path.exists():
            return
        names = sorted(entry.name for entry in self.path.iterdir())
        foreign = [name for name in names if not manifest.OWN_FILE.fullmatch(name)]
        if foreign:
            raise CheckpointError(
                f"it is a folder that isn't a checkpoint, with {foreign[0]!r} in it."
            )

    def open(self, name: str, size_bytes: int, blocks: Blocks) -> VerifiedFile:
        """A large file, whose blocks are verified before their bytes are used."""
        path = self.path / name
        content = memoryview(b"")
        with plain_file.open_file(path) as file:
            # A file of another size is damaged: without content, its first read raises an error
            # that names it.
            if os.fstat(file.fileno()).st_size == size_bytes:
                # Private: what is written to a tensor on this memory stays in the process.
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return VerifiedFile(
            str(path), lambda start, stop: content[start:stop], size_bytes, blocks, is_local=True
        )
