"""A checkpoint folder behind an fsspec file system, such as an object store.

Objects appear whole there, and nothing can be renamed in one step: files get names of their own at once, and the
manifest, written last, makes them a checkpoint.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any, BinaryIO

from core.checkpoint import manifest
from core.checkpoint.verified_file import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class RemoteFolder:
    """One checkpoint folder. What a writer that died has left stays until the next save there: nobody can tell."""

    def __init__(self, filesystem: Any, name: str, url: str) -> None:
        self.filesystem = filesystem
        self.folder = name.rstrip("/")
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def name_of(self, file: str) -> str:
        """URL of a file in it, for messages."""
        return f"{self.url}/{file}"

    def begin(self) -> str:
        """Rank 0. The save's own name."""
        self.filesystem.makedirs(self.folder, exist_ok=True)
        return secrets.token_hex(4)

    @contextlib.contextmanager
    def stage(self, token: str) -> Iterator[None]:
        """All ranks. Nothing has to be held."""
        yield

    @contextlib.contextmanager
    def create(self, token: str, name: str) -> Iterator[BinaryIO]:
        """All ranks. A new file."""
        with self.filesystem.open(self._path(name), "wb") as file:
            yield file

    def commit(self, token: str, content: bytes, files: Iterable[str]) -> None:
        """Rank 0, when all files are there. Write the manifest, and delete what it doesn't name."""
        self.filesystem.pipe_file(self._path(manifest.NAME), content)
        self._delete_all_but(set(files))

    def discard(self, token: str) -> None:
        """Rank 0. Delete what was written for a save that failed."""
        for name in self._names():
            if name.startswith(f"{token}-"):
                self._delete(name)

    def remove(self) -> None:
        """Rank 0. Delete the manifest, and so the checkpoint, then the files."""
        self._delete(manifest.NAME)
        self._delete_all_but(set())
        with contextlib.suppress(OSError, NotImplementedError):
            self.filesystem.rmdir(self.folder)

    def read_manifest(self) -> bytes:
        """Content of the manifest.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.read(manifest.NAME)

    def read(self, name: str) -> bytes:
        """Content of a small file."""
        return bytes(self.filesystem.cat_file(self._path(name)))

    def open(self, name: str, size_bytes: int, blocks: list[str]) -> RemoteFile:
        """A large file, whose blocks are verified when they are fetched."""
        path = self._path(name)
        return RemoteFile(
            self.name_of(name),
            lambda start, stop: bytes(self.filesystem.cat_file(path, start=start, end=stop)),
            size_bytes,
            blocks,
        )

    def exists(self) -> bool:
        """Whether a complete checkpoint is there, in whichever form."""
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self._path(manifest.NAME))) or self.is_file()

    def is_file(self) -> bool:
        """Whether a file is there: a checkpoint of another form."""
        return bool(self.filesystem.isfile(self.folder))

    def is_folder(self) -> bool:
        """Whether something is there that isn't a file."""
        return bool(self._names())

    def siblings(self) -> list[str] | None:
        """Names of what lies beside it; None if its own folder doesn't exist."""
        try:
            entries = self.filesystem.ls(self.folder.rpartition("/")[0], detail=False)
        except OSError:
            return None
        return [entry.rstrip("/").rpartition("/")[2] for entry in entries]

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _names(self) -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            entries = self.filesystem.ls(self.folder, detail=False)
        except FileNotFoundError:
            return []
        return [entry.rstrip("/").rpartition("/")[2] for entry in entries]

    def _delete_all_but(self, kept: set[str]) -> None:
        for name in self._names():
            if manifest.OWN_FILE.fullmatch(name) and name not in kept:
                self._delete(name)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self._path(name))
