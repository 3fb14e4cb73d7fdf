"""Storage of one checkpoint file, which is replaced so that it is there whole or not at all.

A file and its digest can't be renamed in one step. So the digest file is written first, with the
digests of the old and of the new content; then the file is renamed, which is the moment that
counts; then the old digest goes. Whenever the process dies, the content that is there is one of
those that the digest file names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from core.checkpoint.folder import left_over
from core.checkpoint.format import digest, manifest
from core.checkpoint.storage import disk, locks, messages
from core.checkpoint.storage.disk import partial_path
from core.checkpoint.storage.place import LocalPlace, Place, RemotePlace, has_happened, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract.checkpoint_io import PathLike

    Write = Callable[[BinaryIO], str]
    """Writes the content, and returns its digest."""


class AnyLocation:
    """One checkpoint file and its digest: what local and remote ones do alike. Meant to be
    subclassed. Paths that don't exist raise FileNotFoundError.

    What `replace` writes with `is_sealed` has its digest within, and none beside it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.digest_place = place.parent.child(digest.name_of(place.name))

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.digest_place.read(digest.MAX_BYTES)
        return None

    def remove(self) -> None:
        """Delete the file, then its digest, if they are there."""
        self.place.delete()
        self.digest_place.delete()

    def read_back(self, temporary: Place, new: str) -> None:
        """Check that what is to replace something can be read."""
        if self.place.is_file():
            with temporary.open() as file:
                if digest.of_file(file) != new:
                    raise messages.not_as_written(temporary.name)

    def accepted(self) -> list[str]:
        """Digests that the content that is about to be replaced may have."""
        if not self.place.is_file():
            return []
        content = self.read_digest()
        if content is not None:
            return digest.from_text(content)
        # A file from elsewhere has no digest yet, and needs one until it is replaced: a reader may
        # still get it.
        with self.place.open() as file:
            return [digest.of_file(file)]


class LocalLocation(AnyLocation):
    """A file that the operating system reaches."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalPlace(path))
        self.path = path
        self.folder = path.parent

    def open(self) -> BinaryIO:
        """The content. What is saved from now on is newer."""
        file = self.place.open()
        manifest.note_time(os.fstat(file.fileno()).st_mtime_ns)
        return file

    def replace(self, write: Write, *, is_sealed: bool = False) -> None:
        """Replace the content: temporary file beside it, flush, rename."""
        disk.make_parents(self.folder)
        with contextlib.ExitStack() as stack:
            with locks.held(self.folder):
                left_over.sweep(self.folder)
                file, temporary = stack.enter_context(self._temporary(self.path))
            new = write(file)
            # A clock may jump back, and of two files the one that was saved later is to be the
            # newer one all the same.
            disk.set_time(file, manifest.next_time_ns())
            disk.sync(file)
            self.read_back(LocalPlace(temporary), new)
            # The writing above is not under the lock: it takes long, and others may save to the
            # same folder.
            with locks.held(self.folder):
                if not is_sealed:
                    self.write_digest([*self.accepted(), new])
                disk.rename(temporary, self.path)
                with messages.in_place():
                    disk.sync_folder(self.folder)
                with contextlib.suppress(OSError):  # the next save does it
                    self.write_digest([] if is_sealed else [new])

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        if self.path.is_symlink():  # the digest stands beside the file
            return LocalLocation(self.path.resolve()).read_digest()
        return super().read_digest()

    def write_digest(self, digests: list[str]) -> None:
        """Replace the digest file, or delete it if there are none."""
        if not digests:
            self.digest_place.delete()
            return
        path = self.folder / self.digest_place.name
        with self._temporary(path) as (file, temporary):
            file.write(digest.to_text(digests))
            disk.sync(file)
            disk.rename(temporary, path)
            disk.sync_folder(self.folder)

    @contextlib.contextmanager
    def _temporary(self, target: Path) -> Iterator[tuple[BinaryIO, Path]]:
        """A new file beside `target`, locked as long as its writer lives, and gone at the end if it
        wasn't renamed.
        """
        path = partial_path(target, secrets.token_hex(4))
        file = disk.create(path)
        try:
            with locks.held(path):
                yield file, path
        finally:
            # What had to come to the disk was synced; whatever fails here, the save has ended as it
            # has.
            for end in (file.close, lambda: disk.unlink(path)):
                with contextlib.suppress(OSError):
                    end()


class RemoteLocation(AnyLocation):
    """A file behind an fsspec file system. A dead writer's remains stay: nothing distinguishes it
    from a live one.
    """

    place: RemotePlace
    digest_place: RemotePlace

    def open(self) -> BinaryIO:
        """The content, in a temporary local copy: it is read twice, and not in order."""
        with self.place.open() as remote, contextlib.ExitStack() as stack:
            local = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(remote, local, 1 << 20)
            local.seek(0)
            stack.pop_all()  # the caller closes it
        return local

    def replace(self, write: Write, *, is_sealed: bool = False) -> None:
        """Replace the content: write under another name, then move. An object appears whole in the
        stores we know.
        """
        filesystem, folder = self.place.filesystem, self.place.parent
        filesystem.makedirs(folder.path, exist_ok=True)
        temporary = folder.child(f"{self.place.name}.{secrets.token_hex(4)}.partial")
        try:
            with filesystem.open(temporary.path, "wb") as file:
                new = write(file)
            self.read_back(temporary, new)
            if not is_sealed:
                self.write_digest([*self.accepted(), new])
            # Move a file. Many stores copy and then delete: a call that fails may have moved it
            # nevertheless.
            try:
                filesystem.mv(temporary.path, self.place.path)
            except Exception as error:
                if not has_happened(lambda: self._holds(new), error):
                    raise
        finally:
            # whatever fails here, the save has ended as it has
            with contextlib.suppress(Exception):
                temporary.delete()
        with contextlib.suppress(Exception):  # the next save does it
            self.write_digest([] if is_sealed else [new])

    def _holds(self, new: str) -> bool:
        with self.open() as file:
            return digest.of_file(file) == new

    def write_digest(self, digests: list[str]) -> None:
        """Replace the digest file, or delete it if there are none."""
        if not digests:
            self.digest_place.delete()
            return
        self.digest_place.write(digest.to_text(digests))


Location: TypeAlias = LocalLocation | RemoteLocation


def location_of(path: PathLike) -> Location:
    """The location that a local path or a URL names."""
    place = place_of(path)
    if isinstance(place, LocalPlace):
        return LocalLocation(place.path)
    return RemoteLocation(place)
