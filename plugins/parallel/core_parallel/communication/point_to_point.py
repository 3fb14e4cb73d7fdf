"""Tensors from one rank of a pipeline to another."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from core.contract import Awaited

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed import ProcessGroup, Work


class Line:
    """The line between the ranks of one pipeline.

    Attributes:
        group: their process group.
        position: of this rank in the pipeline, from 0.
        size: number of its ranks.
        device: on which tensors arrive.
        expected: what this rank waits for, by a key, the first that it has asked for first; for the
            watch over ranks.
        given: what it has sent last, if somebody has yet to take it.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.position, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._sent: list[tuple[Work | None, Tensor]] = []
        self._ranks = dist.get_process_group_ranks(group)
        self.expected: dict[Any, Awaited] = {}
        self.given: Awaited | None = None

    def awaited(self) -> Awaited | None:
        """Any thread. The messages for which this rank waits, if it waits."""
        return next(iter([*self.expected.values()]), self.given)

    def of(self, what: str, position: int) -> Awaited:
        """A message of the rank at a position, for `expected` or `given`."""
        return Awaited(what, (self._ranks[position],))

    @contextmanager
    def _awaiting(self, what: str, position: int | None = None) -> Iterator[None]:
        """A context in which something is awaited of the rank at a position, or of all."""
        key, positions = object(), range(self.size) if position is None else [position]
        ranks = tuple(self._ranks[one] for one in positions if one != self.position)
        if ranks:
            self.expected[key] = Awaited(what, ranks)
        try:
            yield
        finally:
            self.expected.pop(key, None)

    def send(self, tensor: Tensor, position: int) -> None:
        """Send a tensor on its way. It is kept until `wait`."""
        # As bytes: gloo doesn't know every dtype.
        data = tensor.detach().to(self.device).contiguous().view(-1).view(torch.uint8)
        if data.numel():
            self._sent.append((dist.isend(data, group=self.group, group_dst=position), data))
            self.given = self.of("the receipt of what it has sent", position)

    def receive(self, like: Tensor, position: int, what: str = "a tensor") -> Tensor:
        """Wait for a tensor.

        Args:
            like: has its shape and dtype, on any device.
            position: of the sender.
            what: it is, in words.
        """
        received = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        if received.numel():
            with self._awaiting(what, position):
                dist.recv(received.view(-1).view(torch.uint8), group=self.group, group_src=position)
        return received

    def wait(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._sent:
            if work is not None:
                work.wait()
        self._sent.clear()
        self.given = None

    def send_object(self, obj: Any, position: int) -> None:
        """Send a small picklable object on its way."""
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        self.send(torch.tensor([len(data)]), position)
        self.send(data, position)

    def receive_object(self, position: int, what: str = "an object") -> Any:
        """Wait for a small picklable object."""
        size = int(self.receive(torch.empty(1, dtype=torch.int64, device="meta"), position, what))
        data = self.receive(torch.empty(size, dtype=torch.uint8, device="meta"), position, what)
        return pickle.loads(data.cpu().numpy().tobytes())  # of a rank of this run

    def share_object(self, obj: Any, position: int, what: str = "an object") -> Any:
        """All ranks of the pipeline. The object of one of them."""
        box = [obj]
        with self._awaiting(what, position):
            dist.broadcast_object_list(
                box, group=self.group, group_src=position, device=self.device
            )
        return box[0]

    def share(self, tensor: Tensor, position: int, what: str = "a tensor") -> Tensor:
        """All ranks of the pipeline. The tensor of one of them.

        Args:
            tensor: its elements there, and what has its shape and dtype elsewhere.
            position: of the rank that has it.
            what: it is, in words.
        """
        if self.position == position:
            shared = tensor.detach().to(self.device).contiguous()
        else:
            shared = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        if shared.numel():
            with self._awaiting(what, position):
                dist.broadcast(
                    shared.view(-1).view(torch.uint8), group=self.group, group_src=position
                )
        return shared

    def gather_objects(self, obj: Any) -> Sequence[Any]:
        """All ranks of the pipeline. Everyone's small picklable object, by position."""
        gathered: list[Any] = [None] * self.size
        with self._awaiting("the agreement of all"):
            dist.all_gather_object(gathered, obj, group=self.group)
        return gathered

    def add_up(self, tensor: Tensor) -> Tensor:
        """All ranks of the pipeline. The sum of a tensor of one shape, in place."""
        with self._awaiting("the sum over all"):
            dist.all_reduce(tensor, group=self.group)
        return tensor
