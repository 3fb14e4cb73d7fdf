"""The parts of a checkpoint that one node has in its memory, each with a note that says what it is.

A part is what core's `PartWriter` writes for one rank. Its note is written last, and makes it a
part.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.checkpoint.building_blocks import (
    FileEntry,
    LocalFolder,
    Manifest,
    PartWriter,
    VerifiedFile,
    digest_of,
    is_content,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Container, Iterable
    from typing import BinaryIO

    from core.checkpoint.building_blocks import Blocks

NOTE_BYTES = 1024
"""Size of every note: ranks exchange them before they know more."""

_SUFFIX = ".note"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a checkpoint that one rank has written.

    Attributes:
        checkpoint: name of the folder that it lies in, the same on all nodes.
        token: of the save, 8 hexadecimal digits.
        rank: that has written it.
        world_size: number of ranks that have saved together.
        saved_at_ns: nanoseconds since 1970.
        files: by name.
    """

    checkpoint: str
    token: str
    rank: int
    world_size: int
    files: dict[str, FileEntry]
    saved_at_ns: int = field(default_factory=time.time_ns)

    @property
    def note(self) -> str:
        """Name of its note."""
        return f".{self.token}-{self.rank:05}{_SUFFIX}"

    def to_bytes(self) -> bytes:
        """Content of the note, which begins with its own digest and is filled up with spaces."""
        text = json.dumps(asdict(self)).encode()
        content = digest_of(text).encode() + text
        assert len(content) <= NOTE_BYTES, "a note names two files"
        return content.ljust(NOTE_BYTES)


def part_from(content: bytes) -> Part | None:
    """The part that a note describes; None if it isn't a note, or is damaged."""
    text = content[32:].rstrip(b" ")
    if content[:32] != digest_of(text).encode():
        return None
    fields = json.loads(text)
    return Part(
        **fields | {"files": {name: FileEntry(**entry) for name, entry in fields["files"].items()}}
    )


class _Plain:
    """A folder whose files are written where they stay: nothing counts before its note is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, token: str, name: str) -> BinaryIO:
        """A new file."""
        return (self.path / name).open("wb")


def write(folder: Path, state: dict[str, Any], token: str, rank: int, world_size: int) -> Part:
    """This rank. Write its part of a state, without the note."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = PartWriter(state, rank).write(_Plain(folder), token)  # type: ignore[arg-type]  # it creates files only
    return Part(folder.name, token, rank, world_size, files)


def add_note(folder: Path, part: Part) -> None:
    """Write the note, when all files of the part are there."""
    partial = folder / f"{part.note}.partial"
    partial.write_bytes(part.to_bytes())
    partial.rename(folder / part.note)


def find(parent: Path, share: tuple[int, int]) -> list[Part]:
    """The parts of all checkpoints in a folder whose every byte is there.

    Args:
        parent: of the checkpoints.
        share: number of this process, and of all on this node: each reads some of the parts.
    """
    index, size = share
    notes = sorted(parent.glob(f"*/.*{_SUFFIX}"))
    found = ((path.parent, part_from(path.read_bytes())) for path in notes)
    return [
        part
        for folder, part in found
        if part is not None
        and part.rank % size == index
        and part.checkpoint == folder.name
        and _is_whole(folder, part)
    ]


def _is_whole(folder: Path, part: Part) -> bool:
    return all(_has(folder / name, entry) for name, entry in part.files.items())


def _has(path: Path, entry: FileEntry) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return is_content(file, entry.digest)
    except OSError:
        return False


def complete(parts: Iterable[Part]) -> dict[int, Part] | None:
    """By rank, the parts of the newest checkpoint of which none is missing."""
    saves: dict[tuple[str, str], dict[int, Part]] = {}
    for part in parts:
        saves.setdefault((part.checkpoint, part.token), {})[part.rank] = part
    whole = [
        save
        for save in saves.values()
        if all(len(save) == part.world_size for part in save.values())
    ]
    return max(whole, key=lambda save: (save[0].checkpoint, save[0].saved_at_ns), default=None)


def manifest_of(parts: dict[int, Part], writer: dict[str, Any]) -> bytes:
    """Content of a manifest that names the files of all parts."""
    files = {name: entry for part in parts.values() for name, entry in part.files.items()}
    return Manifest(files, len(parts), writer, parts[0].saved_at_ns).to_bytes()


def place(path: Path, size_bytes: int) -> mmap.mmap | bytearray:
    """A new file of this size, mapped: what is written there is in it.

    Raises:
        OSError: there is no room. Without asking for it first, the process would end when it writes
            there.
    """
    if not size_bytes:
        path.touch()
        return bytearray()
    with path.open("w+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        else:  # macOS
            file.truncate(size_bytes)
        return _mapped(file, size_bytes)


def content_of(path: Path) -> mmap.mmap | bytearray:
    """The bytes of a file, mapped. They aren't to be changed."""
    size_bytes = path.stat().st_size
    if not size_bytes:
        return bytearray()
    with path.open("r+b") as file:
        return _mapped(file, size_bytes)


def _mapped(file: BinaryIO, size_bytes: int) -> mmap.mmap:
    import mmap

    return mmap.mmap(file.fileno(), size_bytes)


class AbsentError(OSError):
    """Bytes are needed now of a file that is in the memory of another node: `args[0]` is its
    name.
    """


class _AbsentFile(VerifiedFile):
    """A file that is on another node."""


class NodeFolder(LocalFolder):
    """A checkpoint of which some files are on other nodes.

    Args:
        path: of the folder on this node.
        names: of the files that are here.
    """

    def __init__(self, path: Path, names: Container[str]) -> None:
        super().__init__(path)
        self._names = names

    def open(self, name: str, size_bytes: int, blocks: Blocks) -> VerifiedFile:
        """A file with the bytes of tensors, here or elsewhere."""
        if name in self._names:
            return super().open(name, size_bytes, blocks)

        def fail(start: int, stop: int) -> memoryview:
            raise AbsentError(name)

        return _AbsentFile(str(self.path / name), fail, size_bytes, blocks, is_local=True)


def is_absent(file: Any) -> bool:
    """True if a file is on another node."""
    return isinstance(file, _AbsentFile)
