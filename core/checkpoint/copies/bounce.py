"""Small buffers in memory, through which tensors that lie elsewhere go to a file and come from
one.
"""

from __future__ import annotations

import torch

BOUNCE_BYTES = 4 << 20
"""The most bytes that go through a buffer at a time."""


class Bounce:
    """Buffers for what a file can't be written from, or read into. For CUDA two in pinned memory:
    the device copies.

    While it copies from one or to one, the other one is read, hashed and written.
    """

    def __init__(self) -> None:
        self._buffers: dict[bool, list[torch.Tensor]] = {}
        self._events: dict[int, torch.cuda.Event] = {}

    def take(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """A buffer of bytes that no device uses any more; for CUDA not the one that was taken
        last.
        """
        is_pinned = device.type == "cuda"
        buffers = self._buffers.setdefault(is_pinned, [])
        if len(buffers) < 1 + is_pinned:
            buffers.append(torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=is_pinned))
        else:
            buffers.append(buffers.pop(0))
        self.await_copy(buffers[-1])
        return buffers[-1][:num_bytes]

    def note_copy(self, buffer: torch.Tensor, device: torch.device) -> None:
        """Note that a copy from the buffer or to it has been queued on a CUDA device."""
        with torch.cuda.device(device):
            self._events[buffer.data_ptr()] = event = torch.cuda.Event()
            event.record()

    def await_copy(self, buffer: torch.Tensor) -> None:
        """Wait until the copy is done that was noted for a buffer."""
        event = self._events.pop(buffer.data_ptr(), None)
        if event is not None:
            event.synchronize()

    def finish(self) -> None:
        """Wait until all copies are done."""
        for event in self._events.values():
            event.synchronize()
