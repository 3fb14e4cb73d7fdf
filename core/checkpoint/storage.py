"""Where one checkpoint file lies, and how it is replaced so that it is there whole or not at all.

A file and its digest can't be renamed in one step. So the digest file is written first, with the digests of the old and
of the new content; then the file is renamed, which is the moment that counts; then the old digest goes. Whenever the
process dies, the content that is there is one of those that the digest file names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from core.checkpoint import digest, disk, locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract.checkpoint_io import PathLike

_PARTIAL = ".partial"


class Place(Protocol):
    """One checkpoint file and its digest. Paths that don't exist raise FileNotFoundError."""

    def open(self) -> BinaryIO:
        """The content, seekable."""

    def replace(self, write: Callable[[BinaryIO], str]) -> None:
        """Replace the content by what `write` writes; it returns the digest of that."""

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""

    def exists(self) -> bool:
        """Whether a file is there."""

    def remove(self) -> None:
        """Delete the file and its digest, if they are there."""

    def siblings(self) -> list[str]:
        """Names of the files in the same folder."""


def place_of(path: PathLike) -> Place:
    """The place that a local path or a URL names."""
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return LocalPlace(Path(text))
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    filesystem, name = fsspec.url_to_fs(text)
    return LocalPlace(Path(name)) if isinstance(filesystem, LocalFileSystem) else RemotePlace(filesystem, name)


class LocalPlace:
    """A file that the operating system reaches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.digest_path = path.with_name(path.name + digest.SUFFIX)

    def open(self) -> BinaryIO:
        """The content."""
        return self.path.open("rb")

    def replace(self, write: Callable[[BinaryIO], str]) -> None:
        """Replace the content: temporary file beside it, flush, rename."""
        disk.make_parents(self.folder)
        with contextlib.ExitStack() as stack:
            with locks.held(self.folder):
                self._sweep()
                file, temporary = stack.enter_context(self._temporary(self.path))
            new = write(file)
            disk.sync(file)
            with locks.held(self.folder):
                self._write_digest([*self._accepted(), new])
                self._rename(temporary, self.path)
                self._write_digest([new])

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        # A symbolic link has none of its own: the digest stands beside the file.
        path = LocalPlace(self.path.resolve()).digest_path if self.path.is_symlink() else self.digest_path
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def exists(self) -> bool:
        """Whether a file is there."""
        return self.path.is_file()

    def remove(self) -> None:
        """Delete the file, then its digest."""
        disk.unlink(self.path)
        disk.unlink(self.digest_path)

    def siblings(self) -> list[str]:
        """Names of the files in the same folder."""
        return [entry.name for entry in self.folder.iterdir() if entry.is_file()]

    def _accepted(self) -> list[str]:
        """Digests that the content that is about to be replaced may have."""
        if not self.exists():
            return []
        if (content := self.read_digest()) is not None:
            return digest.from_text(content)
        with self.open() as file:
            return [digest.of_file(file)]

    def _write_digest(self, digests: list[str]) -> None:
        with self._temporary(self.digest_path) as (file, temporary):
            file.write(digest.to_text(digests))
            disk.sync(file)
            self._rename(temporary, self.digest_path)

    def _rename(self, temporary: Path, target: Path) -> None:
        disk.rename(temporary, target)
        disk.sync_folder(self.folder)

    @contextlib.contextmanager
    def _temporary(self, target: Path) -> Iterator[tuple[BinaryIO, Path]]:
        """A new file beside `target`, locked as long as its writer lives, and gone at the end if it wasn't renamed."""
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_PARTIAL}")
        with disk.create(path) as file, locks.held(path):
            try:
                yield file, path
            finally:
                disk.unlink(path)

    def _sweep(self) -> None:
        """Delete what writers that died have left."""
        for path in self.folder.iterdir():
            if path.name.startswith(f".{self.path.name}.") and path.name.endswith(_PARTIAL) and locks.is_free(path):
                with contextlib.suppress(OSError):
                    disk.unlink(path)


class RemotePlace:
    """A file behind an fsspec file system. What a writer that died has left stays: nobody can tell whether it lives."""

    def __init__(self, filesystem: Any, name: str) -> None:
        self.filesystem = filesystem
        self.name = name
        self.folder = name.rpartition("/")[0]
        self.digest_name = name + digest.SUFFIX

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

    def replace(self, write: Callable[[BinaryIO], str]) -> None:
        """Replace the content: write under another name, then move. An object appears whole in the stores we know."""
        self.filesystem.makedirs(self.folder, exist_ok=True)
        temporary = f"{self.name}.{secrets.token_hex(4)}{_PARTIAL}"
        try:
            with self.filesystem.open(temporary, "wb") as file:
                new = write(file)
            self._write_digest([*self._accepted(), new])
            self.filesystem.mv(temporary, self.name)
            self._write_digest([new])
        finally:
            _remove_remote(self.filesystem, temporary)

    def read_digest(self) -> bytes | None:
        """Content of the digest file, None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return bytes(self.filesystem.cat_file(self.digest_name))
        return None

    def exists(self) -> bool:
        """Whether a file is there."""
        return bool(self.filesystem.isfile(self.name))

    def remove(self) -> None:
        """Delete the file, then its digest."""
        _remove_remote(self.filesystem, self.name)
        _remove_remote(self.filesystem, self.digest_name)

    def siblings(self) -> list[str]:
        """Names of the files in the same folder."""
        entries = self.filesystem.ls(self.folder, detail=True)
        return [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]

    def _accepted(self) -> list[str]:
        if not self.exists():
            return []
        if (content := self.read_digest()) is not None:
            return digest.from_text(content)
        with self.filesystem.open(self.name, "rb") as file:
            return [digest.of_file(file)]

    def _write_digest(self, digests: list[str]) -> None:
        self.filesystem.pipe_file(self.digest_name, digest.to_text(digests))


def _remove_remote(filesystem: Any, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm_file(name)
