"""The weights of a module as a stream: whole tensors one after the other, whatever a strategy has
made of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from core import ConfigurationError, ModuleError, ShardedLeaf
from core.checkpoint.building_blocks import chunks_to_fill, shape_of
from core.precision import kept_in_float32
from core.watch import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from torch import Tensor, nn

    from core import Chunk, Strategy


class WeightDescription(NamedTuple):
    """A tensor of a stream, as it will be yielded.

    Attributes:
        name: in the stream.
        dtype: there.
        shape: of the whole tensor.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WholeTensors:
    """The tensors of a sharded state, put together one at a time. On all ranks, in the same order.

    A rank holds its parts, and the tensor that was asked for last. Of ranks that have the same part
    the first gives it.

    Attributes:
        shapes: (dtype, whole shape) by name, in an order that ranks share.
    """

    def __init__(self, strategy: Strategy, leaves: Mapping[str, Any]) -> None:
        """All ranks. Learn which rank gives which part: one exchange of places, and no tensors.

        Args:
            strategy: that has set the module up.
            leaves: tensors, DTensors and `ShardedLeaf`s by name, as
                `get_module_state_dict(layout="sharded")` has them.

        Raises:
            ModuleError: no rank has some part of a tensor, or several have parts of it that
                overlap.
        """
        self._strategy = strategy
        known: dict[Any, Any] = {}
        self._chunks: dict[str, Sequence[Chunk]] = {
            name: chunks_to_fill(leaf, known) for name, leaf in leaves.items()
        }
        places = {
            name: (
                leaf.dtype,
                shape_of(leaf),
                [(chunk.offsets, chunk.sizes) for chunk in self._chunks[name]],
            )
            for name, leaf in leaves.items()
        }
        collectives = strategy.session.collectives
        every = collectives.broadcast_object(collectives.gather_objects(places))
        self.shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._owners: dict[str, dict[Any, int]] = {}
        for rank, of_rank in enumerate(every):
            for name, (dtype, shape, found) in of_rank.items():
                self.shapes.setdefault(name, (dtype, shape))
                owners = self._owners.setdefault(name, {})
                for place in found:
                    owners.setdefault(place, rank)
        for name, owners in self._owners.items():
            if sum(math.prod(sizes) for _, sizes in owners) != math.prod(self.shapes[name][1]):
                raise ModuleError(
                    f"The ranks' parts of {name!r} don't make up the tensor of shape "
                    f"{self.shapes[name][1]}: "
                    f"{type(strategy).__name__}.get_module_state_dict(layout='sharded') gives "
                    f"{list(owners)}."
                )
        self._is_whole = {
            name: all(len(of_rank.get(name, ((), (), ()))[2]) == 1 for of_rank in every)
            and len(owners) == 1
            for name, owners in self._owners.items()
        }

    def get(self, name: str) -> Tensor:
        """All ranks. The tensor of this name, on the strategy's device. Not to be changed."""
        device = self._strategy.root_device
        if self._is_whole[name]:
            return self._chunks[name][0].tensor.to(device)
        dtype, shape = self.shapes[name]
        total = torch.zeros(shape, dtype=dtype, device=device)
        for chunk in self._chunks.get(name, ()):
            if self._owners[name][chunk.offsets, chunk.sizes] == self._strategy.global_rank:
                total[chunk.box] = chunk.tensor.to(device)
        # Added up as integers: everybody else's are 0, so that -0.0 and NaN keep their bits, in any
        # dtype. In pieces, as `reduce` makes copies.
        integers = total.view(-1).view(
            {4: torch.int32, 8: torch.int64}.get(total.element_size(), torch.uint8)
        )
        for piece in integers.split(max(integers.numel() // 16, 1 << 18)):
            piece.copy_(self._strategy.reduce(piece, reduce_op="sum"))
        return total

    def held_names(self) -> list[str]:
        """The names of tensors of which this rank has a part."""
        return [name for name in self.shapes if self._chunks.get(name)]


class WeightStream:
    """The weights of a module as whole tensors, under any strategy. `Fabric.weights` and
    `Trainer.weights` make it.

        stream = fabric.weights(model, dtype=torch.bfloat16)
        for name, tensor in stream:  # all ranks
            if fabric.is_global_zero:
                send(name, tensor)

    Each iteration begins anew with the weights as they are, between two steps. Tensors are on the
    strategy's device, the same on all ranks and in the same order; they are not to be changed, and
    may be the parameters themselves.

    Attributes:
        version: of the weights that the last iteration has begun with: the Trainer's `global_step`,
            or in a loop of your own the number of iterations.
    """

    _own_beats = 0  # of all streams: what they add to the heartbeat isn't training

    def __init__(
        self,
        strategy: Strategy,
        module: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        names: Iterable[str] | Mapping[str, str] | None = None,
        version: Callable[[], int] | None = None,
    ) -> None:
        """All ranks. Describe the weights; no tensor is gathered. See `Fabric.weights`."""
        self._strategy, self._module = strategy, module
        self._version, self.version = version, 0
        if version is not None:
            self.version = version()
        tensors = self._open()
        if names is None:
            names = tensors.shapes.keys()
        if not isinstance(names, Mapping):
            names = {name: name for name in names}
        self._names = dict(names)
        unknown = [name for name in self._names if name not in tensors.shapes]
        if unknown:
            raise ModuleError(
                f"weights(names=...) has {unknown[0]!r}, and {type(module).__name__} has no tensor "
                f"of this name in its state. It has {', '.join(list(tensors.shapes)[:4])}, ..."
            )
        kept = kept_in_float32(strategy.session.handle_of(module).module, dtype)
        self._described = []
        for name, own in self._names.items():
            stored, shape = tensors.shapes[name]
            if dtype is not None and stored.is_floating_point and name not in kept:
                stored = dtype
            self._described.append(WeightDescription(own, stored, shape))
        held = set(tensors.held_names())
        self._held: list[str] | None = None
        if not held >= self._names.keys():
            self._held = [own for name, own in self._names.items() if name in held]

    def metadata(self) -> list[WeightDescription]:
        """Names, dtypes and whole shapes in the order of the iteration, the same on all ranks. No
        communication.
        """
        return list(self._described)

    def held_names(self) -> list[str] | None:
        """The names of tensors of which this rank has a part; None if it has one of each."""
        return self._held

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """All ranks. Yield (name, whole tensor), one after the other.

        Raises:
            ConfigurationError: within a training step, or training has gone on since this iteration
                began.
        """
        tensors = self._open()
        self.version += 1
        if self._version is not None:
            self.version = self._version()
        began = heartbeat.count - WeightStream._own_beats
        for name, (own, dtype, _) in zip(self._names, self._described, strict=True):
            if heartbeat.count - WeightStream._own_beats != began:
                raise ConfigurationError(
                    "Training has gone on since this iteration over weights began, so that "
                    f"{own!r} would be of another step than those before it. Iterate to the end "
                    "before the next step."
                )
            heartbeat.count += 1  # a receiver may be slow
            WeightStream._own_beats += 1
            yield own, tensors.get(name).to(dtype)

    def _open(self) -> WholeTensors:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "run_training_step":
                raise ConfigurationError(
                    "Weights are asked for within a training step, in which some may be those "
                    "before it and others those after it. Ask between two steps, as in "
                    "on_train_batch_end."
                )
            frame = frame.f_back
        self._strategy.synchronize_model()
        state = self._strategy.get_module_state_dict(self._module, layout="sharded")
        leaves = {
            name: leaf
            for name, leaf in state.items()
            if isinstance(leaf, torch.Tensor | ShardedLeaf)
        }
        return WholeTensors(self._strategy, leaves)
