"""Copies from CUDA devices to memory, beside what the devices do for training.

A copy takes a stream of its own, and memory that the device can write to by itself. Work that was
queued before comes first. What is queued afterwards waits for the copies, in its queue and not in
the program: all of it for tensors that anything may change, an optimizer's next step for those that
only optimizers change.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from core.checkpoint.copies.tensor_bytes import ALIGNMENT_BYTES, strides_of
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    Copy: TypeAlias = tuple[torch.Tensor, torch.Tensor]
    """An empty tensor that gets memory and the elements, and where they are."""

_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def await_copies() -> None:
    """Make devices finish the copies that saves have begun before the work that is queued from now
    on.

    For what writes to trained weights between two steps of their optimizer. The program doesn't
    wait.
    """
    for copies in list(_running):
        copies.hold_up()


@dataclass
class _Batch:
    """The copies from one device."""

    device: torch.device
    at_once: list[Copy] = field(default_factory=list)
    later: list[Copy] = field(default_factory=list)
    sums: Copy | None = None  # of each tensor in `later`, when the copies began


class DeviceCopies:
    """Copies of one state at a time, into memory that is kept for the next one."""

    def __init__(self) -> None:
        self._arena = _Arena()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: dict[torch.device, torch.cuda.Event] = {}
        self._batches: list[_Batch] = []
        self._is_held_up = True
        self._hook: Any = None

    def begin(self, copies: Sequence[Copy], stepped: Iterable[torch.Tensor]) -> None:
        """Begin to copy. The copies before these were awaited.

        Args:
            copies: one or more, from CUDA devices. The targets have their memory when this returns,
                and their elements when `finish` does.
            stepped: tensors that nothing but an optimizer's step changes, some of which are copied,
                or parts of them.

        Raises:
            CheckpointError: there is no memory for them that a device can write to.
        """
        addresses = {_address(tensor) for tensor in stepped}
        batches: dict[torch.device, _Batch] = {}
        for copy in copies:
            batch = batches.setdefault(copy[1].device, _Batch(copy[1].device))
            if _address(copy[1]) in addresses:
                batch.later.append(copy)
            else:
                batch.at_once.append(copy)
        laid_out = [*copies]
        for batch in batches.values():
            if batch.later:
                sums = torch.stack([_sum(source) for _, source in batch.later])
                batch.sums = torch.empty(0, dtype=sums.dtype), sums
                laid_out.append(batch.sums)
        self._batches = list(batches.values())
        self._arena.lay_out(laid_out)
        for batch in self._batches:
            self._begin(batch)
        self._is_held_up = False
        if self._hook is None:
            # Not removed after the step: torch is going through its hooks then.
            self._hook = register_optimizer_step_pre_hook(lambda *_: await_copies())
            _running.add(self)

    def _begin(self, batch: _Batch) -> None:
        main = torch.cuda.current_stream(batch.device)
        if batch.device not in self._streams:
            self._streams[batch.device] = torch.cuda.Stream(batch.device)
        side = self._streams[batch.device]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            _copy(batch.at_once)
            if batch.at_once:
                main.wait_event(side.record_event())
            if batch.sums is not None:
                _copy([batch.sums, *batch.later])
            self._events[batch.device] = side.record_event()

    def hold_up(self) -> None:
        """Make the work that is queued from now on wait for the copies."""
        if not self._is_held_up:
            self._is_held_up = True
            for device, event in list(self._events.items()):
                torch.cuda.current_stream(device).wait_event(event)

    def finish(self) -> None:
        """Wait until all is copied.

        Raises:
            CheckpointError: something was changed meanwhile, and not by an optimizer's step.
        """
        for event in self._events.values():
            event.synchronize()
        batches, self._batches, self._events = self._batches, [], {}
        for batch in batches:
            if batch.sums is not None and batch.sums[0].tolist() != [
                _sum(held).item() for held, _ in batch.later
            ]:
                raise CheckpointError(
                    "Weights were changed while a save was copying them, by something else than "
                    "their optimizer's step: what was copied is of two moments, and isn't written. "
                    "Use AsyncCheckpointIO(during_forward=False), or call "
                    "core.checkpoint.await_copies() before you change them."
                )

    def close(self) -> None:
        """Forget the optimizers, between two steps. Nothing is copied any more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            _running.discard(self)


_running: weakref.WeakSet[DeviceCopies] = weakref.WeakSet()


class _Arena:
    """Memory that CUDA devices can write to by themselves, of the size that is needed: torch takes
    powers of two.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._unlock: Any = None

    def lay_out(self, copies: Sequence[Copy]) -> None:
        """Set the memory of each target, one after the other."""
        starts, num_bytes = [], 0
        for _, source in copies:
            starts.append(num_bytes)
            num_bytes += -(-source.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not num_bytes <= self._memory.nbytes <= 2 * num_bytes:
            self._take(max(num_bytes, ALIGNMENT_BYTES))
        storage = self._memory.untyped_storage()
        for (target, source), start in zip(copies, starts, strict=True):
            shape = tuple(source.shape)
            target.set_(storage, start // source.dtype.itemsize, shape, strides_of(shape))

    def _take(self, num_bytes: int) -> None:
        if self._unlock is not None:
            self._unlock()  # what is kept from before goes first
        self._memory = memory = torch.empty(num_bytes, dtype=torch.uint8)
        address, runtime = memory.data_ptr(), torch.cuda.cudart()
        # 1 is cudaHostRegisterPortable: for all devices.
        error = int(runtime.cudaHostRegister(address, num_bytes, 1))
        if error:
            raise CheckpointError(
                f"{num_bytes:,} bytes of memory can't be locked for copies from the device, CUDA's "
                f"error {error}. Save without AsyncCheckpointIO, or in more processes."
            )
        # This has the memory until it is unlocked.
        self._unlock = weakref.finalize(self, _unlock, runtime, memory)
        self._unlock.atexit = False  # the end of the process does it, when CUDA may be gone


def _unlock(runtime: Any, memory: torch.Tensor) -> None:
    runtime.cudaHostUnregister(memory.data_ptr())


def _copy(copies: Sequence[Copy]) -> None:
    for target, source in copies:
        target.copy_(source, non_blocking=True)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """A number that another content of the tensor hardly has: all its elements, read as integers,
    added up.
    """
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_AS_INTEGERS[plain.dtype.itemsize]).sum(dtype=torch.int64)
