"""Digests of what is written and read: XXH3 with 128 bits, which keeps up with memory.

It finds damage, not malice: write access to a checkpoint is write access to its digest too.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

SUFFIX = ".digest"
"""Suffix of the hidden file beside a one-file checkpoint (`name_of`). One line for each content
that is right: `xxh3-128 <32 hexadecimal digits>`; two lines stand there only while a checkpoint is
replaced. `xxhsum -H2 last.ckpt` prints the same digits."""

MAX_BYTES = 1 << 12
"""The largest size of such a file."""

BLOCK_BYTES = 1 << 20
"""Files of a folder have a digest for each block of so many bytes, so that parts of them can be
read and verified.
"""

_LINE = re.compile(r"xxh3-128 ([0-9a-f]{32})")
_CHUNK_BYTES = 1 << 20


def name_of(path: str) -> str:
    """The digest file of a one-file checkpoint: `folder/.last.ckpt.digest` of `folder/last.ckpt`,
    out of listings.
    """
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}{SUFFIX}"


def new_hash() -> Any:
    """A fresh hash object."""
    return xxhash.xxh3_128()


def of_bytes(content: Any) -> str:
    """Digest of something in memory."""
    return xxhash.xxh3_128_hexdigest(content)


def of_file(file: BinaryIO, size_bytes: int = sys.maxsize) -> str:
    """Digest of what is left to read in `file`: all, or so many bytes at most."""
    digest = new_hash()
    piece = file.read(min(size_bytes, _CHUNK_BYTES))
    while piece:
        digest.update(piece)
        size_bytes -= len(piece)
        piece = file.read(min(size_bytes, _CHUNK_BYTES))
    return str(digest.hexdigest())


def of_blocks(digests: Iterable[str]) -> str:
    """Digest of a file, made of those of its blocks."""
    return of_bytes("".join(digests).encode())


def is_content(file: BinaryIO, expected: str, block_bytes: int = BLOCK_BYTES) -> bool:
    """True if what is left to read in a file has the digest that is made of those of its blocks."""
    blocks = iter(lambda: file.read(block_bytes), b"")
    return of_blocks(map(of_bytes, blocks)) == expected


def to_text(digests: list[str]) -> bytes:
    """Content of a digest file."""
    return "".join(f"xxh3-128 {digest}\n" for digest in digests).encode()


def from_text(content: bytes) -> list[str]:
    """The digests in a digest file; none if it isn't one."""
    lines = content.decode("ascii", "replace").splitlines()
    digests = [match[1] for match in map(_LINE.fullmatch, lines) if match]
    if len(digests) < len(lines):
        return []
    return digests


@dataclass(frozen=True, slots=True)
class Blocks:
    """The digests of the blocks of a file.

    Attributes:
        digests: in the order of the blocks.
        block_bytes: of each of them but the last, which may be shorter.
    """

    digests: list[str]
    block_bytes: int


class HashingWriter:
    """A file that is written front to back, and its digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = new_hash()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write, and take into the digest. torch reports an error of its own in place of an
        OSError: it is kept.
        """
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing, for torch: the file is flushed when it is complete."""

    def digest_of(self, write: Callable[[HashingWriter], None]) -> str:
        """Digest of what `write` writes here.

        Raises:
            OSError: a write failed, whatever torch has made of it.
        """
        try:
            write(self)
        except Exception:
            if self.error:
                raise self.error from None
            raise
        return self.hexdigest()

    def hexdigest(self) -> str:
        """Digest of all that was written."""
        return str(self._hash.hexdigest())


class BlockWriter:
    """A file that is written front to back, and the digests of its blocks.

    Attributes:
        position: where the next byte goes.
        blocks: digests of the blocks that are complete; of all of them after `finish`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = new_hash()
        self.position = 0
        self.blocks: list[str] = []

    def write(self, data: Any) -> None:
        """Write bytes, hashing each piece while it is in the processor's cache."""
        view = memoryview(data)
        while view:
            # No piece goes past the end of a block, whatever the sizes that are written.
            piece = view[: BLOCK_BYTES - self.position % BLOCK_BYTES]
            self._hash.update(piece)
            self._file.write(piece)
            self.position += len(piece)
            view = view[len(piece) :]
            if self.position % BLOCK_BYTES == 0:
                self._end_block()

    def align(self, num_bytes: int) -> None:
        """Write zeros up to the next multiple of `num_bytes`."""
        self.write(bytes(-self.position % num_bytes))

    def finish(self) -> str:
        """The digest of the file, which is complete, made of those of its blocks."""
        if self.position % BLOCK_BYTES:
            self._end_block()
        return of_blocks(self.blocks)

    def _end_block(self) -> None:
        self.blocks.append(self._hash.hexdigest())
        self._hash.reset()
