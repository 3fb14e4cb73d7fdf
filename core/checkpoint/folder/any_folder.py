"""A checkpoint folder, local or remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint.format import digest, manifest
from core.checkpoint.storage import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.checkpoint.format.manifest import FileEntry
    from core.checkpoint.storage.place import Place


class AnyFolder:
    """One checkpoint folder: what local and remote ones do alike. Meant to be subclassed.

    A save calls `begin`, `stage`, `create`, `read_back` and `commit`, or `discard` in the place of
    the last.
    """

    place: Place

    def __str__(self) -> str:
        return str(self.place)

    def written(self, token: str, name: str) -> Place:
        """The place of a file that the save `token` has created."""
        return self.place.child(name)

    def read_back(self, token: str, files: Mapping[str, FileEntry]) -> None:
        """All ranks. Read files that were created.

        Raises:
            CheckpointError: one isn't what was written.
        """
        for name, entry in files.items():
            with self.written(token, name).open() as file:
                if not digest.is_content(file, entry.digest):
                    raise messages.not_as_written(name)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Content of a small file in it."""
        return self.place.child(name).read(max_bytes)

    def read_manifest(self) -> bytes:
        """Content of the manifest.

        Raises:
            FileNotFoundError: there is none.
            NotAFileError: something else is there, or more.
        """
        return self.read(manifest.NAME, manifest.MAX_BYTES)

    def name_of(self, file: str) -> str:
        """Path or URL of a file in it, for messages."""
        return str(self.place.child(file))

    def is_file(self) -> bool:
        """True if a file is there: a checkpoint of another form."""
        return self.place.is_file()

    def exists(self) -> bool:
        """True if a complete checkpoint is there, in any form."""
        return self.place.child(manifest.NAME).is_file() or self.is_file()
