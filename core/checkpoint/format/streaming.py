"""Chunks of tensors read into their places, and verified meanwhile.

A local file is read once, front to back, and hashed while the processor still has the bytes. Where
a chunk lies in memory as it does in the file, the system copies it there, and nothing else does.
Other chunks, such as those of a device, go through a small buffer. What is read between them,
because their blocks can't be verified without it, is dropped.
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING

import torch

from core.checkpoint.copies.bounce import BOUNCE_BYTES, Bounce
from core.checkpoint.copies.tensor_bytes import bytes_of
from core.checkpoint.format import digest
from core.checkpoint.format.verified_file import WINDOW_BYTES, damaged, wrong_size
from core.text import plain_file

if TYPE_CHECKING:
    from core.checkpoint.format.chunk_reads import ChunkRead
    from core.checkpoint.format.verified_file import VerifiedFile

_PIECE_BYTES = 1 << 20
"""Bytes that are read, and then hashed, at a time: they are still in the processor's cache."""


def fill(file: VerifiedFile, reads: list[ChunkRead]) -> None:
    """Read chunks of a file into their places: what was filled when it raises is no state.

    Raises:
        CheckpointCorruptedError: a block is damaged.
        OSError: it can't be read.
    """
    if file.is_local:
        reads = _stream(file, reads)
    for read in reads:
        start, stop, memory = read.start, read.stop, read.memory
        if memory is None:
            read.put(torch.frombuffer(file.view(start, stop), dtype=torch.uint8))
            continue
        while start < stop:
            end = min(start - start % WINDOW_BYTES + WINDOW_BYTES, stop)
            memory[start - read.start : end - read.start] = file.view(start, end)
            start = end


def _stream(file: VerifiedFile, reads: list[ChunkRead]) -> list[ChunkRead]:
    """Read all but what is returned: those that overlap others, of tensors that share bytes in the
    file only.
    """
    chosen: list[ChunkRead] = []
    left = []
    position = 0
    for read in sorted(reads, key=operator.attrgetter("start", "stop")):
        if read.start < position:
            left.append(read)
        else:
            chosen.append(read)
            position = read.stop
    if chosen:
        with plain_file.open_file(file.path) as opened:
            running = _Stream(opened.fileno(), file)
            try:
                if os.fstat(opened.fileno()).st_size != file.size_bytes:
                    raise EOFError
                running.run(chosen)
            except EOFError:
                raise wrong_size(file.path, file.size_bytes) from None
            finally:
                running.bounce.finish()
    return left


class _Stream:
    """One pass over the blocks of a file that are needed."""

    def __init__(self, descriptor: int, file: VerifiedFile) -> None:
        self._descriptor = descriptor
        self._file = file
        self._block_bytes = file.blocks.block_bytes
        self._hash = digest.new_hash()
        self._dropped = memoryview(bytearray(_PIECE_BYTES))
        self._position = 0
        self.bounce = Bounce()

    def run(self, reads: list[ChunkRead]) -> None:
        """Read what lies apart, in order."""
        for read in reads:
            if read.memory is not None:
                self._go_to(read.start)
                self._take(read.memory)
                continue
            for part in read.parts(BOUNCE_BYTES):
                self._go_to(part.start)
                buffer = self.bounce.take(part.stop - part.start, part.target.device)
                self._take(bytes_of(buffer))
                # On a CUDA device that goes on while the next part is read.
                in_background = part.target.device.type == "cuda"
                part.put(buffer, in_background=in_background)
                if in_background:
                    self.bounce.note_copy(buffer, part.target.device)
        self._drop(self._end_of_block())

    def _end_of_block(self) -> int:
        """The end of the block that has been begun."""
        end = -(-self._position // self._block_bytes) * self._block_bytes
        return min(end, self._file.size_bytes)

    def _go_to(self, start: int) -> None:
        block = start - start % self._block_bytes
        if block > self._position:
            self._drop(self._end_of_block())
            self._position = block
        self._drop(start)

    def _drop(self, stop: int) -> None:
        while self._position < stop:
            self._take(self._dropped[: stop - self._position])

    def _take(self, memory: memoryview) -> None:
        """Read what comes next, and hash it."""
        while memory:
            left = self._block_bytes - self._position % self._block_bytes
            piece = memory[: min(left, _PIECE_BYTES)]
            size = os.preadv(self._descriptor, [piece], self._position)
            if not size:
                raise EOFError
            self._hash.update(piece[:size])
            self._position += size
            memory = memory[size:]
            if size == left or self._position == self._file.size_bytes:
                index = (self._position - 1) // self._block_bytes
                if self._hash.hexdigest() != self._file.blocks.digests[index]:
                    raise damaged(self._file.path, index * self._block_bytes, self._position)
                self._hash.reset()
