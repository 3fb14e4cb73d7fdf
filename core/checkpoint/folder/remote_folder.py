"""A checkpoint folder behind an fsspec file system, such as an object store.

Objects appear whole there, and nothing can be renamed in one step: files get names of their own at
once, and the manifest, written last, makes them a checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from typing import TYPE_CHECKING, Any, BinaryIO

from core.checkpoint.format import digest, manifest
from core.checkpoint.format.verified_file import RemoteFile
from core.checkpoint.storage import messages
from core.checkpoint.storage.remote_path import has_happened, modified_at
from core.contract.errors import CheckpointError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from core.checkpoint.format.digest import Blocks
    from core.checkpoint.format.manifest import FileEntry
    from core.checkpoint.storage.remote_path import RemotePath


STALE_S = 24 * 3600.0
"""Seconds by the store's own clock after which a file that no manifest names is taken for a dead
writer's.
"""

_not_deleted: dict[str, set[str]] = {}
"""By the URL of a checkpoint the files that a manifest named which this process has replaced, and
couldn't delete.
"""

_WINDOW_BYTES = 8 << 20
"""Bytes that are fetched at a time."""


class _Fetched(io.RawIOBase):
    """A file of known size, read by ranges: clients of stores try that again when it fails."""

    def __init__(self, filesystem: Any, path: str, size_bytes: int) -> None:
        self._filesystem, self._path, self._size_bytes = filesystem, path, size_bytes
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fetch what comes next."""
        stop = min(self._position + len(buffer), self._size_bytes)
        if stop == self._position:
            return 0
        content = self._filesystem.cat_file(self._path, start=self._position, end=stop)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


class RemoteFolder:
    """One checkpoint folder. Nothing distinguishes a dead writer from a live one, so its remains
    stay for a day.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self.filesystem = path.filesystem
        self.folder = path.name.rstrip("/")
        self.url = path.url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def name_of(self, file: str) -> str:
        """URL of a file in it, for messages."""
        return f"{self.url}/{file}"

    @contextlib.contextmanager
    def begin(self) -> Iterator[str]:
        """Rank 0. Yield the save's own name. Nothing has to be held."""
        self.filesystem.makedirs(self.folder, exist_ok=True)
        yield secrets.token_hex(4)

    @contextlib.contextmanager
    def stage(self, token: str) -> Iterator[None]:
        """All ranks. Nothing has to be held."""
        yield

    @contextlib.contextmanager
    def create(self, token: str, name: str) -> Iterator[BinaryIO]:
        """All ranks. A new file."""
        with self.filesystem.open(self._path(name), "wb") as file:
            yield file

    def read_back(self, token: str, files: Mapping[str, FileEntry]) -> None:
        """All ranks. Fetch files that were created.

        Raises:
            CheckpointError: one isn't what was written.
        """
        for name, entry in files.items():
            with io.BufferedReader(
                _Fetched(self.filesystem, self._path(name), entry.size_bytes), _WINDOW_BYTES
            ) as file:
                if not digest.is_content(file, entry.size_bytes, entry.digest):
                    raise messages.not_as_written(name)

    def commit(self, token: str, content: bytes, files: Iterable[str]) -> None:
        """Rank 0, when all files are there. Write the manifest, and delete what the one before it
        named.

        Raises:
            CheckpointError: another program has deleted some of them; or the store has not kept the
                manifest as it is, and has that of before again.
        """
        kept = set(files)
        if missing := sorted(kept.difference(self._names())):
            raise CheckpointError(
                f"its file {missing[0]!r} is gone: another program deletes in {self.url}."
            )
        before = self._manifest_before()
        replaced = self._named(before)
        try:
            self.filesystem.pipe_file(self._path(manifest.NAME), content)
        except Exception as error:  # an answer that was lost leaves open whether it is written
            if not has_happened(lambda: self._holds(content), error):
                raise
        self._read_manifest_back(content, before)
        replaced |= _not_deleted.pop(self.url, set())
        try:
            for name in self._unneeded(kept, replaced):
                self._delete(name)
        except Exception:
            # the next save of this process does it: the next manifest to be replaced doesn't name
            # them
            _not_deleted[self.url] = replaced

    def _manifest_before(self) -> bytes | None:
        """The manifest that will be replaced; None if there is none, nothing if it can't be read
        now.
        """
        try:
            return self.read_manifest()
        except FileNotFoundError:
            return None
        except Exception:  # of any store's making
            return b""

    def _named(self, content: bytes | None) -> set[str]:
        """The files that a manifest names."""
        try:
            return set(manifest.from_bytes(content or b"", self.name_of(manifest.NAME)).files)
        except CheckpointError:
            # nothing that can be read, and so nothing that may be deleted for it
            return set()

    def _read_manifest_back(self, content: bytes, before: bytes | None) -> None:
        """Check that the manifest is what was written, while the files of the one before are
        there.
        """
        try:
            # another run's, just as whole
            is_whole = self._holds(content) or bool(self._named(self.read_manifest()))
        except Exception as error:
            raise messages.UnsettledError("is in its place, and can't be read back") from error
        if is_whole:
            return
        path = self._path(manifest.NAME)
        try:
            if before == b"":
                raise FileNotFoundError("the one before could not be read")
            if before is None:
                self.filesystem.rm_file(path)
            else:
                self.filesystem.pipe_file(path, before)
        except Exception as error:
            raise messages.UnsettledError("is in its place, and its manifest is damaged") from error
        raise messages.not_as_written(manifest.NAME)

    def _unneeded(self, kept: set[str], replaced: set[str]) -> list[str]:
        """Files that the last manifest named, and those a day older than this one. A live writer
        may need all else.
        """
        entries = {name: modified for name, _, modified in self.entries()}
        now = entries.get(manifest.NAME, 0.0)
        return [
            name
            for name, modified in entries.items()
            if manifest.OWN_FILE.fullmatch(name)
            and name not in kept
            and (name in replaced or 0 < modified < now - STALE_S)
        ]

    def entries(self) -> list[tuple[str, int, float]]:
        """Name, bytes and time of the last change of each file, by the store's clock."""
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(self.folder, detail=True)
        except FileNotFoundError:
            return []
        return [
            (
                entry["name"].rstrip("/").rpartition("/")[2],
                int(entry.get("size") or 0),
                modified_at(entry),
            )
            for entry in found
        ]

    def _holds(self, content: bytes) -> bool:
        # fsspec remembers listings, also of what has changed since
        self.filesystem.invalidate_cache()
        return self.read_manifest() == content

    def discard(self, token: str) -> None:
        """Rank 0. Delete what was written for a save that failed, unless the manifest may name it
        nevertheless.
        """
        with contextlib.suppress(Exception):
            own = [name for name in self._names() if name.startswith(f"{token}-")]
            # the manifest may have come through although its call failed
            if not self._is_named(token):
                for name in own:
                    self._delete(name)

    def _is_named(self, token: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return f'"{token}-'.encode() in self.read_manifest()
        return False

    def remove(self) -> None:
        """Rank 0. Delete the manifest, and so the checkpoint, then the files."""
        self._delete(manifest.NAME)
        for name in filter(manifest.OWN_FILE.fullmatch, self._names()):
            self._delete(name)
        with contextlib.suppress(OSError, NotImplementedError):
            self.filesystem.rmdir(self.folder)

    def read_manifest(self) -> bytes:
        """Content of the manifest.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.read(manifest.NAME, manifest.MAX_BYTES)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Content of a small file.

        Raises:
            NotAFileError: more is there.
        """
        content = bytes(self.filesystem.cat_file(self._path(name), start=0, end=max_bytes + 1))
        if len(content) > max_bytes:
            raise NotAFileError(f"{self.name_of(name)!r} has more than {max_bytes:,} bytes")
        return content

    def open(self, name: str, size_bytes: int, blocks: Blocks) -> RemoteFile:
        """A large file, whose blocks are verified when they are fetched."""
        path = self._path(name)
        return RemoteFile(
            self.name_of(name),
            lambda start, stop: bytes(self.filesystem.cat_file(path, start=start, end=stop)),
            size_bytes,
            blocks,
        )

    def exists(self) -> bool:
        """True if a complete checkpoint is there, in any form."""
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self._path(manifest.NAME))) or self.is_file()

    def is_file(self) -> bool:
        """True if a file is there: a checkpoint of another form."""
        return bool(self.filesystem.isfile(self.folder))

    def names(self) -> list[str] | None:
        """Names of what lies in it; None if nothing does, and so no folder is there."""
        return self._names() or None

    def siblings(self) -> list[str] | None:
        """Names of what lies beside it; None if its own folder doesn't exist."""
        try:
            return self.path.names_in(self.folder.rpartition("/")[0])
        except OSError:
            return None

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _names(self) -> list[str]:
        self.filesystem.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return self.path.names_in(self.folder)
        return []

    def _delete(self, name: str) -> None:
        self.path.delete(self._path(name))
