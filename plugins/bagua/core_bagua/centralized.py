"""Gradients are averaged over all ranks in each step: in full, or in eight bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist

from core import Capability
from core_bagua.algorithm import Algorithm
from core_bagua.compression import CompressedMean
from core_bagua.messages import exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(kw_only=True)
class GradientAllReduce(Algorithm):
    """Centralized, full precision: DistributedDataParallel's arithmetic, in one message after each
    backward.

    Attributes:
        average: divide the sum of gradients by the number of ranks.
    """

    average: bool = True
    adds: ClassVar[Capability] = (
        Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS | Capability.WEIGHTED_LOSSES
    )
    lacks: ClassVar[Capability] = Capability.NONE
    drifts: ClassVar[bool] = False

    def after_backward(self, gradients: Mapping[str, Tensor]) -> None:
        """All ranks. Average."""
        exchange(gradients, self._combined, flatten=self.flatten)

    def _combined(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        dist.all_reduce(message)
        return message / dist.get_world_size() if self.average else message


@dataclass(kw_only=True)
class ByteGrad(Algorithm):
    """Centralized, low precision: gradients travel in eight bits, both ways, with error feedback.

    Attributes:
        average: take the mean of gradients, and not their sum.
        mean: the exchange, which keeps what is left out.
    """

    average: bool = True
    mean: CompressedMean = field(default_factory=CompressedMean, init=False)
    adds: ClassVar[Capability] = Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS
    drifts: ClassVar[bool] = False
    takes_scaled: ClassVar[bool] = False

    def after_backward(self, gradients: Mapping[str, Tensor]) -> None:
        """All ranks. Average in eight bits."""
        exchange(gradients, self._combined, flatten=self.flatten)

    def _combined(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        mean = self.mean(parts, message)
        return mean if self.average else mean * dist.get_world_size()

    def state_dict(self) -> dict[str, Any]:
        """The part of gradients that compression has left out on this rank."""
        return {"rest": self.mean.rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.mean.rest = dict(state["rest"])
