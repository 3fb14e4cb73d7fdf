"""Tensors from one rank of a pipeline to another."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup, Work


class Line:
    """The line between the ranks of one pipeline.

    Attributes:
        group: their process group.
        position: of this rank in the pipeline, from 0.
        size: number of its ranks.
        device: on which tensors arrive.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.position, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._sent: list[tuple[Work | None, Tensor]] = []

    def send(self, tensor: Tensor, position: int) -> None:
        """Send a tensor on its way. It is kept until `wait`."""
        # As bytes: gloo doesn't know every dtype.
        data = tensor.detach().to(self.device).contiguous().view(-1).view(torch.uint8)
        if data.numel():
            self._sent.append((dist.isend(data, group=self.group, group_dst=position), data))

    def receive(self, like: Tensor, position: int) -> Tensor:
        """Wait for a tensor.

        Args:
            like: has its shape and dtype, on any device.
            position: of the sender.
        """
        received = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        if received.numel():
            dist.recv(received.view(-1).view(torch.uint8), group=self.group, group_src=position)
        return received

    def wait(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._sent:
            if work is not None:
                work.wait()
        self._sent.clear()

    def send_object(self, obj: Any, position: int) -> None:
        """Send a small picklable object on its way."""
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        self.send(torch.tensor([len(data)]), position)
        self.send(data, position)

    def receive_object(self, position: int) -> Any:
        """Wait for a small picklable object."""
        size = int(self.receive(torch.empty(1, dtype=torch.int64, device="meta"), position))
        data = self.receive(torch.empty(size, dtype=torch.uint8, device="meta"), position)
        return pickle.loads(data.cpu().numpy().tobytes())  # of a rank of this run

    def share_object(self, obj: Any, position: int) -> Any:
        """All ranks of the pipeline. The object of one of them."""
        box = [obj]
        dist.broadcast_object_list(box, group=self.group, group_src=position, device=self.device)
        return box[0]

    def share(self, tensor: Tensor, position: int) -> Tensor:
        """All ranks of the pipeline. The tensor of one of them.

        Args:
            tensor: its elements there, and what has its shape and dtype elsewhere.
            position: of the rank that has it.
        """
        sends = self.position == position
        shared = tensor.detach().to(self.device).contiguous() if sends else _empty_like(tensor, self.device)
        if shared.numel():
            dist.broadcast(shared.view(-1).view(torch.uint8), group=self.group, group_src=position)
        return shared

    def gather_objects(self, obj: Any) -> Sequence[Any]:
        """All ranks of the pipeline. Everyone's small picklable object, by position."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, obj, group=self.group)
        return gathered

    def add_up(self, tensor: Tensor) -> Tensor:
        """All ranks of the pipeline. The sum of a tensor of one shape, in place."""
        dist.all_reduce(tensor, group=self.group)
        return tensor


def _empty_like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
