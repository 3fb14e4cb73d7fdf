"""Bytes of tensors that are alive in this process, and bytes that are handed to collectives, as
torch computes.

All that torch's dispatcher runs in the thread is seen: operations of forward, those of backward,
which on CPUs runs in the same thread, those of DistributedDataParallel in C++, and what DTensors do
with their parts. Not seen is what a kernel allocates for itself, and what gloo does.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

if TYPE_CHECKING:
    from collections.abc import Iterable

_HANDED = ("tensors", "tensor", "inputs", "input", "input_list", "input_tensors", "input_tensor")
_NOT_SENT = (
    *("recv", "recv_any_source", "irecv"),
    *("wait_tensor", "wrap_tensor_autograd", "barrier", "monitored_barrier", "check_for_nan"),
)


class Allocations(TorchDispatchMode):
    """Counts while it is entered.

    A storage counts from the first operation that takes or returns a tensor in it, until it is
    freed; when it changes its size, it counts by the new one. Storages on meta have none: those of
    DTensor's own computing with shapes too.

    Attributes:
        live_bytes: of the storages that are alive.
        peak_bytes: the most of them at once since `restart`.
        sent: by operation, how often it was called since `restart`, and the bytes of the tensors
            that it was given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self.sent: dict[str, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._lock = threading.RLock()  # gloo frees what it is done with in threads of its own
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Allocations:
        """Begin to count."""
        resize, count = self._resize, self._count_storage

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            count(storage)
            return result

        torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End to count."""
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def restart(self) -> tuple[int, dict[str, list[int]]]:
        """Begin a new peak. Returns the one before, and what was sent."""
        found = self.peak_bytes, self.sent
        self.peak_bytes, self.sent = self.live_bytes, {}
        return found

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of tensors that were made before."""
        for tensor in tensors:
            self._count_tensor(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and count what it takes and returns."""
        kwargs = kwargs or {}
        given = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(is_traceable_wrapper_subclass(each) for each in given):
            # its class is asked next, and runs the operations on what is in it here
            return NotImplemented
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count_sent(func, args, kwargs)
        result = func(*args, **kwargs)
        for tensor in given:
            self._count_tensor(tensor)
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor):
                self._count_tensor(each)
        return result

    def _count_tensor(self, tensor: torch.Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            self.count(getattr(tensor, name) for name in names)
        elif tensor.layout == torch.strided and tensor.untyped_storage().device.type != "meta":
            self._count_storage(tensor.untyped_storage())

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            before = self._sizes.get(key)
            if before is None:
                self._storages[key] = weakref.ref(storage, lambda _: self._forget(key))
            if size != before:
                self._sizes[key] = size
                self.live_bytes += size - (before or 0)
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        with self._lock:
            self._storages.pop(key, None)
            self.live_bytes -= self._sizes.pop(key, 0)

    def _count_sent(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func._schema.name.partition("::")[2].strip("_")
        if name in _NOT_SENT:
            return
        named = {
            argument.name: value
            for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        size = sum(
            each.numel() * each.element_size()
            for key in _HANDED
            for each in tree_iter(named.get(key))
            if isinstance(each, torch.Tensor)
        )
        entry = self.sent.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += size
