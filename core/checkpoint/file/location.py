"""Storage of one checkpoint file, which is replaced so that it is there whole or not at all.

A file and its digest can't be renamed in one step. So the digest file is written first, with the
digests of the old and of the new content; then the file is renamed, which is the moment that
counts; then the old digest goes. Whenever the process dies, the content that is there is one of
those that the digest file names.
"""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from core.checkpoint.format import digest, manifest
from core.checkpoint.storage import disk, locks, messages
from core.checkpoint.storage.disk import is_partial, partial_path
from core.checkpoint.storage.remote_path import has_happened, path_of
from core.text import plain_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.checkpoint.storage.remote_path import RemotePath
    from core.contract.checkpoint_io import PathLike


class Location(abc.ABC):
    """One checkpoint file and its digest. Paths that don't exist raise FileNotFoundError."""

    @abc.abstractmethod
    def open(self) -> BinaryIO:
        """The content, seekable."""

    @abc.abstractmethod
    def replace(self, write: Callable[[BinaryIO], str], *, is_sealed: bool = False) -> None:
        """Replace the content by what `write` writes; it returns the digest of that.

        What `is_sealed` has its digest within, and none beside it.
        """

    @abc.abstractmethod
    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""

    @abc.abstractmethod
    def exists(self) -> bool:
        """True if a file is there."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Delete the file, then its digest, if they are there."""

    def _accepted(self) -> list[str]:
        """Digests that the content that is about to be replaced may have."""
        if not self.exists():
            return []
        if (content := self.read_digest()) is not None:
            return digest.from_text(content)
        # A file from elsewhere has no digest yet, and needs one until it is replaced: a reader may
        # still get it.
        with self._stream() as file:
            return [digest.of_file(file)]

    def _stream(self) -> BinaryIO:
        """The content, for one reader, front to back."""
        return self.open()


def location_of(path: PathLike) -> Location:
    """The location that a local path or a URL names."""
    found = path_of(path)
    return LocalLocation(found) if isinstance(found, Path) else RemoteLocation(found)


class LocalLocation(Location):
    """A file that the operating system reaches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.digest_path = Path(digest.name_of(str(path)))

    def open(self) -> BinaryIO:
        """The content. What is saved from now on is newer."""
        file = plain_file.open_file(self.path)
        manifest.note_time(os.fstat(file.fileno()).st_mtime_ns)
        return file

    def replace(self, write: Callable[[BinaryIO], str], *, is_sealed: bool = False) -> None:
        """Replace the content: temporary file beside it, flush, rename."""
        disk.make_parents(self.folder)
        with contextlib.ExitStack() as stack:
            with locks.held(self.folder):
                # Delete what writers that died have left, and digests whose file a remover that
                # died has deleted.
                for path in self.folder.iterdir():
                    with contextlib.suppress(OSError):
                        if self._is_left_over(path) or is_lonely_digest(path):
                            disk.unlink(path)
                file, temporary = stack.enter_context(self._temporary(self.path))
            new = write(file)
            # A clock may jump back, and of two files the one that was saved later is to be the
            # newer one all the same.
            disk.set_time(file, manifest.next_time_ns())
            disk.sync(file)
            self._read_back(temporary, new)
            # The writing above is not under the lock: it takes long, and others may save to the
            # same folder.
            with locks.held(self.folder):
                if not is_sealed:
                    self._write_digest([*self._accepted(), new])
                disk.rename(temporary, self.path)
                with messages.in_place():
                    disk.sync_folder(self.folder)
                with contextlib.suppress(OSError):  # the next save does it
                    disk.unlink(self.digest_path) if is_sealed else self._write_digest([new])

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        # A symbolic link has none of its own: the digest stands beside the file.
        path = (
            LocalLocation(self.path.resolve()).digest_path
            if self.path.is_symlink()
            else self.digest_path
        )
        with contextlib.suppress(FileNotFoundError):
            return plain_file.read_file(path, digest.MAX_BYTES)
        return None

    def exists(self) -> bool:
        """True if a file is there."""
        return self.path.is_file()

    def remove(self) -> None:
        """Delete the file, then its digest."""
        disk.unlink(self.path)
        disk.unlink(self.digest_path)

    def _read_back(self, temporary: Path, new: str) -> None:
        """Check that what is to replace something can be read."""
        if self.exists():
            with temporary.open("rb", buffering=0) as file:
                if digest.of_file(file) != new:
                    raise messages.not_as_written(temporary.name)

    def _write_digest(self, digests: list[str]) -> None:
        with self._temporary(self.digest_path) as (file, temporary):
            file.write(digest.to_text(digests))
            disk.sync(file)
            disk.rename(temporary, self.digest_path)
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

    def _is_left_over(self, path: Path) -> bool:
        name = self.path.name  # of it and of its digest
        is_ours = path.name.startswith((f".{name}.", f"..{name}.")) and is_partial(path.name)
        return is_ours and locks.is_free(path)


def is_lonely_digest(path: Path) -> bool:
    """True if it is a digest whose file is gone. While the folder is locked, no writer is between
    the two.
    """
    owner = path.name[1:].removesuffix(digest.SUFFIX)
    if not owner or digest.name_of(owner) != path.name or os.path.lexists(path.with_name(owner)):
        return False
    return (
        path.is_file()
        and path.stat().st_size <= digest.MAX_BYTES
        and bool(digest.from_text(path.read_bytes()))
    )


class RemoteLocation(Location):
    """A file behind an fsspec file system. A dead writer's remains stay: nothing distinguishes it
    from a live one.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self.filesystem = path.filesystem
        self.name = path.name
        self.digest_name = digest.name_of(path.name)

    def open(self) -> BinaryIO:
        """The content, in a temporary local copy: it is read twice, and not in order."""
        local = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            with self.filesystem.open(self.name, "rb") as remote:
                shutil.copyfileobj(remote, local, 1 << 20)
            local.seek(0)
        except BaseException:
            local.close()
            raise
        return local

    def replace(self, write: Callable[[BinaryIO], str], *, is_sealed: bool = False) -> None:
        """Replace the content: write under another name, then move. An object appears whole in the
        stores we know.
        """
        self.filesystem.makedirs(self.path.parent, exist_ok=True)
        temporary = f"{self.name}.{secrets.token_hex(4)}.partial"
        try:
            with self.filesystem.open(temporary, "wb") as file:
                new = write(file)
            self._read_back(temporary, new)
            if not is_sealed:  # first: a reader must find the digest of whichever is there
                self._write_digest([*self._accepted(), new])
            # Move a file. Many stores copy and then delete: a call that fails may have moved it
            # nevertheless.
            try:
                self.filesystem.mv(temporary, self.name)
            except Exception as error:
                if not has_happened(lambda: self._holds(new), error):
                    raise
        finally:
            # whatever fails here, the save has ended as it has
            with contextlib.suppress(Exception):
                self.path.delete(temporary)
        with contextlib.suppress(Exception):  # the next save does it
            self.path.delete(self.digest_name) if is_sealed else self._write_digest([new])

    def _read_back(self, temporary: str, new: str) -> None:
        """Check that what is to replace something can be read."""
        if self.exists():
            with self.filesystem.open(temporary, "rb") as file:
                if digest.of_file(file) != new:
                    raise messages.not_as_written(temporary.rpartition("/")[2])

    def _holds(self, new: str) -> bool:
        with self.open() as file:
            return digest.of_file(file) == new

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return bytes(self.filesystem.cat_file(self.digest_name))
        return None

    def exists(self) -> bool:
        """True if a file is there."""
        return bool(self.filesystem.isfile(self.name))

    def remove(self) -> None:
        """Delete the file, then its digest."""
        self.path.delete(self.name)
        self.path.delete(self.digest_name)

    def _stream(self) -> BinaryIO:
        return self.filesystem.open(self.name, "rb")  # type: ignore[no-any-return]  # fsspec has no types

    def _write_digest(self, digests: list[str]) -> None:
        self.filesystem.pipe_file(self.digest_name, digest.to_text(digests))
