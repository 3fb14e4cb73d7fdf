"""A network with its step, its optimizer and its data, as users write a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset

from core import Module

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES_OF_FOUR_RANKS = 6
_STYLES: dict[str, type[ColwiseParallel | RowwiseParallel]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
}


class Drawn(Dataset[Any]):
    """Samples that are drawn when they are asked for, each by its own number."""

    def __init__(self, draw: Callable[[torch.Generator], tuple[Tensor, ...]], size: int) -> None:
        self._draw, self._size = draw, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self._draw(torch.Generator().manual_seed(index))


class Learner(Module):
    """A network, the loss of one batch, and where its samples come from.

    Attributes:
        net: the network.
        plan: which layers are cut under `model_parallel`; names in `net`. Other strategies never
            read it.
    """

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        draw: Callable[[torch.Generator], tuple[Tensor, ...]],
        batch_size: int,
        *,
        plan: dict[str, str] | None = None,
        momentum: float | None = None,
    ) -> None:
        super().__init__()
        self.net, self._loss, self._draw, self._batch_size = net, loss, draw, batch_size
        self.plan, self._momentum = plan, momentum
        self._is_cut = False

    def configure_model(self) -> None:
        mesh = self.device_mesh
        if self._is_cut or mesh is None or "tensor_parallel" not in (mesh.mesh_dim_names or ()):
            return
        if self.plan is None:
            raise ValueError("a model without a plan")
        parallelize_module(
            self.net,
            mesh["tensor_parallel"],
            {name: _STYLES[word]() for name, word in self.plan.items()},
        )
        self._is_cut = True

    def training_step(self, batch: Any) -> Tensor:
        return self._loss(self.net, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if self._momentum is not None:
            return torch.optim.SGD(trained, lr=0.01, momentum=self._momentum)
        return torch.optim.AdamW(trained, lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        size = self._batch_size * 4 * BATCHES_OF_FOUR_RANKS
        return DataLoader(Drawn(self._draw, size), batch_size=self._batch_size)
