"""A sink of weights, the streams that it takes, and what sinks have in common in which rank 0 alone
writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch

from core import CheckpointError, ModuleError
from core.checkpoint.building_blocks import together
from core_weights.weight_stream import WeightDescription

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from core import Fabric, Trainer


class TransferError(CheckpointError):
    """Weights haven't arrived: the process on the other side has died, or took too long."""


class WeightSource(Protocol):
    """A stream of weights: `Fabric.weights`, `Trainer.weights`, or another of this shape."""

    @property
    def version(self) -> int:
        """The number of the weights that the last iteration has begun with."""

    def metadata(self) -> list[WeightDescription]:
        """Names, dtypes and whole shapes, in the order of the iteration."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """All ranks. Yield (name, whole tensor), one after the other."""


class Sink(Protocol):
    """A place that weights are sent to, again and again.

    1. `send` for each version, on all ranks.
    2. `close` once, on all ranks; `send` may open it again.
    """

    def send(self, host: Fabric | Trainer, stream: WeightSource, /) -> None:
        """All ranks, between two steps. Iterate over the stream to its end, on every rank.

        Raises:
            Exception: on all ranks, what failed on one.
        """

    def close(self, error: BaseException | None = None, /) -> None:
        """All ranks. Release everything; without effect if nothing is open.

        Args:
            error: by which training ends; None after its last step.
        """


def write_on_rank_zero(
    host: Fabric | Trainer,
    stream: WeightSource,
    write: Callable[[int, list[WeightDescription], Iterator[tuple[str, Tensor]]], None],
) -> None:
    """All ranks. Pass a stream to a function on rank 0; the other ranks give their parts, also
    after an error.

    Args:
        host: the Fabric or Trainer of the stream.
        stream: to iterate over, once.
        write: takes the version, the descriptions, and the tensors in their order.

    Raises:
        Exception: that of rank 0; on the others a CheckpointError with its text.
        ModuleError: the stream yields something else than its `metadata()` says.
    """
    tensors = iter(stream)

    def attempt() -> None:
        try:
            if host.is_global_zero:
                begun = _begin(tensors)
                described = stream.metadata()
                write(stream.version, described, _as_described(described, begun))
        finally:
            deque(tensors, maxlen=0)  # which holds none of them

    together(host.strategy.session.collectives, attempt)


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor on the CPU, without a copy where it is there and contiguous."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _begin(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors, of which the first is asked for at once: by then the stream knows its
    version.
    """
    kept = [pair for pair in (next(tensors, None),) if pair is not None]

    def resume() -> Iterator[tuple[str, Tensor]]:
        while kept:
            yield kept.pop()
        yield from tensors

    return resume()


def _as_described(
    described: list[WeightDescription], tensors: Iterator[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    for expected in described:
        name, tensor = next(tensors, ("nothing", torch.empty(0)))
        if (name, tensor.dtype, tuple(tensor.shape)) != expected:
            raise ModuleError(
                f"The stream's metadata() has {expected.name!r}, {expected.dtype}, "
                f"{expected.shape}, and it yields {name!r}, {tensor.dtype}, {tuple(tensor.shape)}."
            )
        yield name, tensor
        del tensor  # before the next one is made
    more = next(tensors, None)
    if more is not None:
        raise ModuleError(f"The stream yields {more[0]!r}, which its metadata() doesn't have.")
