"""Files of a checkpoint folder whose blocks are verified before their bytes are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint.format import digest
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.checkpoint.format.digest import Blocks

WINDOW_BYTES = 8 << 20
"""Bytes that are fetched at a time for what is copied at once."""


class VerifiedFile:
    """One file, whose bytes are fetched with the rest of their blocks.

    Attributes:
        path: of it, or a URL.
        fetch: gives the bytes from a start to a stop as they are, in memory that may be written to.
        size_bytes: that it is to have.
        blocks: their digests.
        is_local: True if the path is one of this machine's, and each fetch gives the same memory,
            so that a block is verified once.
    """

    def __init__(
        self,
        path: str,
        fetch: Callable[[int, int], memoryview],
        size_bytes: int,
        blocks: Blocks,
        *,
        is_local: bool,
    ) -> None:
        self.path = path
        self.fetch = fetch
        self.size_bytes = size_bytes
        self.blocks = blocks
        self.is_local = is_local
        self._verified: set[int] = set()

    def verify(self, start: int, stop: int) -> None:
        """Verify the blocks that the bytes from `start` to `stop` belong to.

        Raises:
            CheckpointCorruptedError: one of them is damaged.
        """
        for begin in range(start, stop, WINDOW_BYTES):
            self.view(begin, min(begin + WINDOW_BYTES, stop))

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes, once the blocks that they belong to are verified. They live as long as they
        are held, and writing to them changes no other copy.

        Raises:
            CheckpointCorruptedError: one of the blocks is damaged; says where in the file.
        """
        size = self.blocks.block_bytes
        first, last = start // size, -(-stop // size)
        origin, end = first * size, min(last * size, self.size_bytes)
        content = self.fetch(origin, end)
        if len(content) != end - origin:
            raise wrong_size(self.path, self.size_bytes)
        for index in range(first, last):
            if index not in self._verified:
                begin = index * size - origin
                block = content[begin : begin + size]
                if digest.of_bytes(block) != self.blocks.digests[index]:
                    raise damaged(self.path, index * size, index * size + len(block))
                if self.is_local:
                    self._verified.add(index)
        return content[start - origin : stop - origin]


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
