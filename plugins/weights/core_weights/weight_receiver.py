"""The other side of a `GroupSink`: a process that gets weights, and trains nothing."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import TCPStore  # torch.distributed's own, with types

from core import ConfigurationError, ModuleError
from core_weights.group_sink import JOINED, NUM_RECEIVERS, join
from core_weights.sink import TransferError, bytes_of
from core_weights.weight_stream import WeightDescription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

_MOST_NAMED = 4


class WeightReceiver:
    """Gets the weights that a `GroupSink` sends, version by version. Used in a process of its own.

        receiver = WeightReceiver("127.0.0.1:29600")
        while receiver.load_into(model):
            serve(model)

    Attributes:
        version: of the weights that came last; None before the first.
        has_ended: True once the trainer has closed the sink.
        rank: the number of this receiver, from 1.
    """

    def __init__(self, address: str, *, timeout: timedelta = timedelta(minutes=30)) -> None:
        """Join the group; waits for the trainer and all other receivers.

        Args:
            address: of the `GroupSink`, `host:port`.
            timeout: for the trainer to come, and for each tensor. A training step must not take
                longer.

        Raises:
            TransferError: nobody is there in time.
            ConfigurationError: the trainer expects no further receiver.
        """
        self.version: int | None = None
        self.has_ended = False
        self._address, self._timeout, self._is_within = address, timeout, False
        host, _, port = address.rpartition(":")
        try:
            store = TCPStore(host, int(port), None, False, timeout)
            size = int(store.get(NUM_RECEIVERS))
            self.rank = int(store.add(JOINED, 1))
            if self.rank > size:
                raise ConfigurationError(
                    f"All {size} receivers of {address} have come before: GroupSink(receivers=...)."
                )
            self._group: ProcessGroup | None = join(store, self.rank, 1 + size, timeout)
        except RuntimeError as error:
            raise self._lost() from error
        self._store: TCPStore | None = store

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) of the next version, on the CPU; nothing if the trainer has
        closed the sink.

        Raises:
            TransferError: the trainer has died or is too slow.
            ConfigurationError: the version before wasn't received to its end.
        """
        yield from self._tensors(self._next_version())

    def load_into(self, module: nn.Module) -> bool:
        """Copy the next version into a module's state. True if there was one, False if the trainer
        has closed the sink.

        Names are those of its `state_dict()`; of several that share a tensor, one is enough. The
        module keeps its dtypes. After an error it may have some of the new weights.

        Raises:
            TransferError: the trainer has died or is too slow.
            ModuleError: names or shapes differ; the connection is closed then.
        """
        described = self._next_version()
        if self.has_ended:
            return False
        state = {
            name: value
            for name, value in module.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        if problems := _differences(described, state):
            self.close()
            raise ModuleError(
                f"{type(module).__name__} isn't what the trainer sends: "
                f"{'; '.join(problems[:_MOST_NAMED])}"
                f"{'; and more' if len(problems) > _MOST_NAMED else ''}."
            )
        with torch.no_grad():
            for name, tensor in self._tensors(described):
                state[name].copy_(tensor)
        return True

    def close(self) -> None:
        """Close the connection, which is an error for a trainer that has more to send."""
        self._group = self._store = None

    def _next_version(self) -> list[WeightDescription]:
        if self._is_within:
            raise ConfigurationError(
                "receive() was left before its end. Iterate over all tensors of a version."
            )
        if self.has_ended:
            return []
        size = self._take(torch.zeros(1, dtype=torch.int64))
        if not size.item():
            self.has_ended = True
            self.close()
            return []
        text = self._take(torch.empty(int(size), dtype=torch.uint8))
        self.version, rows = json.loads(bytes(text.tolist()))
        self._is_within = True
        return [
            WeightDescription(name, getattr(torch, dtype), tuple(shape))
            for name, dtype, shape in rows
        ]

    def _tensors(self, described: list[WeightDescription]) -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in described:
            tensor = torch.empty(shape, dtype=dtype)
            self._take(bytes_of(tensor))
            yield name, tensor
        self._is_within = False

    def _take(self, data: Tensor) -> Tensor:
        """Fill a tensor from the trainer."""
        if self._group is None:
            raise ConfigurationError("This WeightReceiver is closed.")
        try:
            if data.numel():
                self._group.recv([data], 0, 0).wait()
        except RuntimeError as error:
            self.close()
            raise self._lost() from error
        return data

    def _lost(self) -> TransferError:
        return TransferError(
            f"The trainer at {self._address} has died, or has sent nothing within {self._timeout}. "
            "Its own output says why; WeightReceiver(timeout=...) waits longer."
        )


def _differences(described: list[WeightDescription], state: dict[str, Tensor]) -> list[str]:
    problems = [f"it has no {name!r}" for name, _, _ in described if name not in state]
    for name, _, shape in described:
        if name in state and (state[name].shape != shape or state[name].is_meta):
            what = (
                "on the meta device"
                if state[name].is_meta
                else f"of shape {tuple(state[name].shape)}, not {shape}"
            )
            problems.append(f"{name!r} is {what}")
    filled = {state[name].data_ptr() for name, _, _ in described if name in state}
    return problems + [
        f"{name!r} doesn't come" for name, own in state.items() if own.data_ptr() not in filled
    ]
