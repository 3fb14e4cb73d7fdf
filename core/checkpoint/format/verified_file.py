"""Files of a checkpoint folder whose blocks are verified before their bytes are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from core.checkpoint.format import digest
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.checkpoint.format.digest import Blocks

WINDOW_BYTES = 8 << 20
"""Bytes that are fetched at a time for what is copied at once."""


class MappedFile:
    """A file in memory, mapped or read."""

    def __init__(self, path: str, content: memoryview, size_bytes: int, blocks: Blocks) -> None:
        self.path = path
        self._content = content
        self.size_bytes = size_bytes
        self.blocks = blocks
        self._verified = bytearray(len(blocks.digests))

    def verify(self, start: int, stop: int) -> None:
        """Verify the blocks that the bytes from `start` to `stop` belong to, once.

        Raises:
            CheckpointCorruptedError: one of them is damaged.
        """
        if len(self._content) != self.size_bytes:
            raise wrong_size(self.path, self.size_bytes)
        # From the block of the first byte to that of the last.
        size = self.blocks.block_bytes
        for index in range(start // size, -(-stop // size)):
            if not self._verified[index]:
                content = self._content[index * size : (index + 1) * size]
                check_block(self.path, content, self.blocks, index)
                self._verified[index] = 1

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes, which live as long as they are held. Writing to them changes no other copy."""
        self.verify(start, stop)
        return self._content[start:stop]


class RemoteFile:
    """A file that is fetched in parts."""

    def __init__(
        self, path: str, fetch: Callable[[int, int], bytes], size_bytes: int, blocks: Blocks
    ) -> None:
        self.path = path
        self._fetch = fetch
        self.size_bytes = size_bytes
        self.blocks = blocks

    def verify(self, start: int, stop: int) -> None:
        """Fetch the bytes from `start` to `stop`, and drop them.

        Raises:
            CheckpointCorruptedError: a block is damaged.
        """
        for begin in range(start, stop, WINDOW_BYTES):
            self.view(begin, min(begin + WINDOW_BYTES, stop))

    def view(self, start: int, stop: int) -> memoryview:
        """Fetch the bytes, with the rest of their blocks, and verify them.

        Raises:
            CheckpointCorruptedError: a block is damaged.
        """
        size = self.blocks.block_bytes
        first = start // size
        origin = first * size
        end = min(-(-stop // size) * size, self.size_bytes)
        # A copy that may be written to: tensors are put on this memory.
        content = memoryview(bytearray(self._fetch(origin, end)))
        if len(content) != end - origin:
            raise wrong_size(self.path, self.size_bytes)
        for index in range(first, -(-end // size)):
            begin = index * size - origin
            check_block(self.path, content[begin : begin + size], self.blocks, index)
        return content[start - origin : stop - origin]


File: TypeAlias = MappedFile | RemoteFile


def check_block(path: str, content: memoryview, blocks: Blocks, index: int) -> None:
    """Compare one block with its digest.

    Raises:
        CheckpointCorruptedError: with the file, and where in it the damage is.
    """
    if digest.of_bytes(content) != blocks.digests[index]:
        begin = index * blocks.block_bytes
        raise damaged(path, begin, begin + len(content))


def damaged(path: str, begin: int, end: int) -> CheckpointCorruptedError:
    """The bytes of a block don't have its digest."""
    return CheckpointCorruptedError(
        f"{path!r} is damaged between byte {begin} and {end}: the digest of that block differs. "
        "Load an earlier checkpoint."
    )


def wrong_size(path: str, expected: int) -> CheckpointCorruptedError:
    """The file doesn't have its size any more."""
    return CheckpointCorruptedError(
        f"{path!r} is damaged: expected {expected} bytes. Load an earlier checkpoint."
    )
