"""A checkpoint folder behind an fsspec file system, such as an object store.

Objects appear whole there, and nothing can be renamed in one step: files get names of their own at
once, and the manifest, written last, makes them a checkpoint.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, BinaryIO

from core.checkpoint.folder.any_folder import AnyFolder
from core.checkpoint.format import manifest
from core.checkpoint.format.verified_file import VerifiedFile
from core.checkpoint.storage import messages
from core.checkpoint.storage.place import RemotePlace, has_happened, names_in
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from core.checkpoint.format.digest import Blocks

STALE_S = 24 * 3600.0
"""Seconds by the store's own clock after which a file that no manifest names is taken for a dead
writer's.
"""


class RemoteFolder(AnyFolder):
    """One checkpoint folder. Nothing distinguishes a dead writer from a live one, so its remains
    stay for a day.
    """

    place: RemotePlace

    def __init__(self, place: RemotePlace) -> None:
        self.place = place
        self._manifest = place.child(manifest.NAME)

    @contextlib.contextmanager
    def begin(self) -> Iterator[str]:
        """Rank 0. Yield the save's own name. Nothing has to be held."""
        self.place.filesystem.makedirs(self.place.path, exist_ok=True)
        yield secrets.token_hex(4)

    @contextlib.contextmanager
    def stage(self, token: str) -> Iterator[None]:
        """All ranks. Nothing has to be held."""
        yield

    @contextlib.contextmanager
    def create(self, token: str, name: str) -> Iterator[BinaryIO]:
        """All ranks. A new file."""
        with self.place.filesystem.open(self.place.child(name).path, "wb") as file:
            yield file

    def commit(self, token: str, content: bytes, files: Iterable[str]) -> None:
        """Rank 0, when all files are there. Write the manifest, and delete what the one before it
        named.

        Raises:
            CheckpointError: another program has deleted some of them; or the store has not kept the
                manifest as it is, and has that of before again.
        """
        kept = set(files)
        missing = sorted(kept.difference(self._names()))
        if missing:
            raise CheckpointError(
                f"its file {missing[0]!r} is gone: another program deletes in {self}."
            )
        before = self._manifest_before()
        try:
            self._manifest.write(content)
        except Exception as error:  # an answer that was lost leaves open whether it is written
            if not has_happened(lambda: self.read_manifest() == content, error):
                raise
        # While the files of the one before are there. It may be another run's, just as whole.
        try:
            is_whole = bool(self._named(self.read_manifest()))
        except Exception as error:
            raise messages.UnsettledError("is in its place, and can't be read back") from error
        if not is_whole:
            self._put_back(before)
            raise messages.not_as_written(manifest.NAME)
        with contextlib.suppress(Exception):  # a save on another day does it
            for name in self._unneeded(kept, self._named(before)):
                self.place.child(name).delete()

    def _put_back(self, before: bytes | None) -> None:
        """Restore the manifest of before in the place of one that is damaged."""
        try:
            if before is None:
                self._manifest.delete()
            elif before:
                self._manifest.write(before)
            else:
                raise FileNotFoundError("the one before could not be read")
        except Exception as error:
            raise messages.UnsettledError("is in its place, and its manifest is damaged") from error

    def _manifest_before(self) -> bytes | None:
        """The manifest that is there; None if there is none, nothing if it can't be read now."""
        try:
            return self.read_manifest()
        except FileNotFoundError:
            return None
        except Exception:  # of any store's making
            return b""

    def _named(self, content: bytes | None) -> set[str]:
        """The files that a manifest names; none if it can't be read, and so nothing may be deleted
        for it.
        """
        try:
            return set(manifest.from_bytes(content or b"", str(self._manifest)).files)
        except CheckpointError:
            return set()

    def _unneeded(self, kept: set[str], replaced: set[str]) -> list[str]:
        """Files that the last manifest named, and those a day older than this one. A live writer
        may need all else.
        """
        changed = {entry.name: entry.changed_s for entry in self.place.entries()}
        latest = changed.get(manifest.NAME, 0.0) - STALE_S
        return [
            name
            for name in filter(manifest.OWN_FILE.fullmatch, changed.keys() - kept)
            if name in replaced or 0 < changed[name] < latest
        ]

    def discard(self, token: str) -> None:
        """Rank 0. Delete what was written for a save that failed, unless the manifest may name it
        nevertheless.
        """
        with contextlib.suppress(Exception):
            own = [name for name in self._names() if name.startswith(f"{token}-")]
            # the manifest may have come through although its call failed
            found = self._manifest_before()
            if found is None or (found and f'"{token}-'.encode() not in found):
                for name in own:
                    self.place.child(name).delete()

    def remove(self) -> None:
        """Rank 0. Delete the manifest, and so the checkpoint, then the files."""
        self._manifest.delete()
        for name in filter(manifest.OWN_FILE.fullmatch, self._names()):
            self.place.child(name).delete()
        with contextlib.suppress(OSError, NotImplementedError):
            self.place.filesystem.rmdir(self.place.path)

    def open(self, name: str, size_bytes: int, blocks: Blocks) -> VerifiedFile:
        """A large file, whose blocks are verified when they are fetched."""
        file = self.place.child(name)
        return VerifiedFile(
            str(file),
            lambda start, stop: memoryview(bytearray(file.fetch(start, stop))),
            size_bytes,
            blocks,
            is_local=False,
        )

    def _names(self) -> list[str]:
        return names_in(self.place) or []
