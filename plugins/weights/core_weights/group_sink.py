"""Weights sent to other processes, through a process group that they share with rank 0 of the
trainer.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch.distributed's own, with types
from torch.distributed import ProcessGroupGloo

from core import ConfigurationError
from core_weights.sink import TransferError, bytes_of, write_on_rank_zero

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

    from core import Fabric, Trainer
    from core_weights.sink import WeightSource
    from core_weights.weight_stream import WeightDescription

NUM_RECEIVERS = "num_receivers"
JOINED = "joined"


class GroupSink:
    """Sends each version to receivers: other processes, each with a `WeightReceiver`, which need no
    strategy.

    Rank 0 has a store at an address and a group of its own, on Gloo; the trainer's process group
    doesn't know of it. A tensor is sent when all receivers have asked for it, so that they and the
    trainer are never more than a version apart. Nothing that is sent is unpickled.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        receivers: int = 1,
        host: str = "127.0.0.1",
        timeout: timedelta = timedelta(minutes=4),
    ) -> None:
        """Create the sink; it opens with the first version, or when `address` is read.

        Args:
            port: of the store; 0 for a free one.
            receivers: number of them. The first version waits for all.
            host: rank 0's machine, as receivers reach it. Gloo's connections take the interface
                that `GLOO_SOCKET_IFNAME` names, or that of the machine's own name.
            timeout: for all receivers to come, and for each to ask for a tensor. The watch over
                several ranks ends a standstill after 5 minutes: for more, raise
                `WatchdogOptions(end_after=...)` too.

        Raises:
            ConfigurationError: no receivers.
        """
        if receivers < 1:
            raise ConfigurationError(f"GroupSink(receivers={receivers}): expected 1 or more.")
        self.port, self.receivers, self.host, self.timeout = port, receivers, host, timeout
        self._store: TCPStore | None = None
        self._group: ProcessGroup | None = None

    @property
    def address(self) -> str:
        """Rank 0. The address for receivers, `host:port`. Opens the store."""
        return f"{self.host}:{self._opened_store().port}"

    def send(self, host: Fabric | Trainer, stream: WeightSource, /) -> None:
        """All ranks. Send a version.

        Raises:
            TransferError: a receiver has died or is too slow. All connections are closed then.
        """
        write_on_rank_zero(host, stream, self._write)

    def close(self, error: BaseException | None = None, /) -> None:
        """All ranks. Wait until each receiver knows that nothing follows, and close all
        connections.

        Args:
            error: if not None, close at once, which is an error for the receivers.

        Raises:
            TransferError: a receiver has died or is too slow.
        """
        try:
            if self._group is not None and error is None:
                self._to_all(torch.zeros(1, dtype=torch.int64), "the end")
        finally:
            self._group = self._store = None

    def _write(
        self,
        version: int,
        described: list[WeightDescription],
        tensors: Iterator[tuple[str, Tensor]],
    ) -> None:
        try:
            if self._group is None:
                self._group = self._join()
            rows = [
                [name, str(dtype).removeprefix("torch."), shape] for name, dtype, shape in described
            ]
            text = torch.frombuffer(
                bytearray(json.dumps([version, rows]).encode()), dtype=torch.uint8
            )
            self._to_all(torch.tensor([len(text)]), f"version {version}")
            self._to_all(text, f"version {version}")
            for name, tensor in tensors:
                self._to_all(bytes_of(tensor), f"{name!r} of version {version}")
                del tensor  # before the next one is made
        except BaseException as error:
            self.close(error)
            raise

    def _opened_store(self) -> TCPStore:
        if self._store is None:
            self._store = TCPStore(
                self.host, self.port, None, True, self.timeout, wait_for_workers=False
            )
            self._store.set(NUM_RECEIVERS, str(self.receivers))
        return self._store

    def _join(self) -> ProcessGroup:
        try:
            return join(self._opened_store(), 0, 1 + self.receivers, self.timeout)
        except RuntimeError as error:
            raise TransferError(
                f"Of {self.receivers} receivers, {self._opened_store().add(JOINED, 0)} have come "
                f"to {self.address} within {self.timeout}, or one of them has died. Start each "
                f"with WeightReceiver({self.address!r})."
            ) from error

    def _to_all(self, data: Tensor, what: str) -> None:
        """Send a tensor to all receivers side by side."""
        assert self._group is not None
        works: list[Work] = []
        ranks = range(1, 1 + self.receivers) if data.numel() else ()
        rank = 0
        try:
            for rank in ranks:
                works.append(self._group.send([data], rank, 0))
            for rank in ranks:
                works[rank - 1].wait()
        except RuntimeError as error:
            raise TransferError(
                f"Receiver {rank} of {self.receivers} has died, or has not asked for {what} within "
                f"{self.timeout}. Its own output says why; GroupSink(timeout=...) waits longer."
            ) from error
        finally:
            works.clear()  # they keep the connections open, and the error's traceback keeps them


def join(store: TCPStore, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """A group of processes that share a store, apart from the process group of torch.distributed.

    Raises:
        RuntimeError: they haven't come in time.
    """
    return cast("ProcessGroup", ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout))
