"""Files of a checkpoint folder whose blocks are verified before their bytes are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.checkpoint import digest
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable


class MappedFile:
    """A file in memory, mapped or read."""

    def __init__(self, path: str, content: memoryview, size_bytes: int, blocks: list[str]) -> None:
        self.path = path
        self._content = content
        self.size_bytes = size_bytes
        self._blocks = blocks
        self._verified = bytearray(len(blocks))

    def verify(self, start: int, stop: int) -> None:
        """Verify the blocks that the bytes from `start` to `stop` belong to, once.

        Raises:
            CheckpointCorruptedError: one of them is damaged.
        """
        if len(self._content) != self.size_bytes:
            raise wrong_size(self.path, self.size_bytes)
        # From the block of the first byte to that of the last.
        for index in range(start // digest.BLOCK_BYTES, -(-stop // digest.BLOCK_BYTES)):
            if not self._verified[index]:
                first = index * digest.BLOCK_BYTES
                check_block(self.path, self._content[first : first + digest.BLOCK_BYTES], self._blocks, index)
                self._verified[index] = 1

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes, which live as long as they are held. Writing to them changes no other copy."""
        self.verify(start, stop)
        return self._content[start:stop]


class RemoteFile:
    """A file that is fetched in parts."""

    def __init__(self, path: str, fetch: Callable[[int, int], bytes], size_bytes: int, blocks: list[str]) -> None:
        self.path = path
        self._fetch = fetch
        self.size_bytes = size_bytes
        self._blocks = blocks

    def verify(self, start: int, stop: int) -> None:
        """Do nothing: what is fetched is verified then."""

    def view(self, start: int, stop: int) -> memoryview:
        """Fetch the bytes, with the rest of their blocks, and verify them.

        Raises:
            CheckpointCorruptedError: a block is damaged.
        """
        first = start // digest.BLOCK_BYTES
        origin = first * digest.BLOCK_BYTES
        end = min(-(-stop // digest.BLOCK_BYTES) * digest.BLOCK_BYTES, self.size_bytes)
        # A copy that may be written to: tensors are put on this memory.
        content = memoryview(bytearray(self._fetch(origin, end)))
        if len(content) != end - origin:
            raise wrong_size(self.path, self.size_bytes)
        for index in range(first, -(-end // digest.BLOCK_BYTES)):
            begin = index * digest.BLOCK_BYTES - origin
            check_block(self.path, content[begin : begin + digest.BLOCK_BYTES], self._blocks, index)
        return content[start - origin : stop - origin]


def check_block(path: str, content: Any, blocks: list[str], index: int) -> None:
    """Compare one block with its digest.

    Raises:
        CheckpointCorruptedError: with the file, and where in it the damage is.
    """
    if digest.of_bytes(content) != blocks[index]:
        begin = index * digest.BLOCK_BYTES
        raise CheckpointCorruptedError(
            f"{path!r} is damaged between byte {begin} and {begin + len(content)}: the digest of that block differs. "
            "Load an earlier checkpoint."
        )


def wrong_size(path: str, expected: int) -> CheckpointCorruptedError:
    """The file doesn't have its size any more."""
    return CheckpointCorruptedError(f"{path!r} is damaged: expected {expected} bytes. Load an earlier checkpoint.")
