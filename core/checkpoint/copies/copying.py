"""Copies of memory to memory, by as many threads as torch may use.

torch's `copy_` deals out equal parts, and spins until the last of them is done: where other programs want the same
cores, that takes twice the processor's time, and longer than one thread would. Here a thread takes the next piece when
it is done with one, so that a core that isn't free does less.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque

import torch

LEAST_BYTES = 1 << 20
"""Tensors below this size are torch's: it takes one thread for them."""
_PIECE_BYTES = 4 << 20
_BYTES_A_THREAD = 32 << 20
"""Bytes for which it pays to begin a thread."""
_MAX_THREADS = 8
"""More don't copy faster: memory is busy then."""


def can_copy(tensor: torch.Tensor) -> bool:
    """True if the elements of a tensor are large memory of the processor's own, in order and as they are."""
    is_plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    return is_plain and tensor.nbytes >= LEAST_BYTES


def copy_all(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors.

    Args:
        copies: each a target and what it gets, of one type and shape, and both as `can_copy` wants them.
    """
    left = deque(
        (target.data_ptr() + start, source.data_ptr() + start, min(_PIECE_BYTES, source.nbytes - start))
        for target, source in copies
        for start in range(0, source.nbytes, _PIECE_BYTES)
    )

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                ctypes.memmove(*left.popleft())

    num_bytes = sum(source.nbytes for _, source in copies)
    num_threads = min(torch.get_num_threads(), _MAX_THREADS, 1 + num_bytes // _BYTES_A_THREAD)
    others = [threading.Thread(target=work, daemon=True) for _ in range(num_threads - 1)]
    try:
        for thread in others:
            thread.start()
        work()
    finally:
        left.clear()  # Ctrl-C: no thread may go on with memory that is given back
        for thread in others:
            if thread.ident is not None:
                thread.join()
