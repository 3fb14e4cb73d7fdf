"""The questions that a strategy may ask the trainer that calls its `setup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from core.contract.step import GradientClipping


class SetupHost(Protocol):
    """The interface of the trainer for `Strategy.setup`, which it calls."""

    @property
    def module(self) -> nn.Module:
        """The user's own module."""

    @property
    def trains(self) -> bool:
        """True if this stage needs optimizers."""

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches of an accumulation window, at the beginning: an engine's own configuration must agree."""

    @property
    def clipping(self) -> GradientClipping | None:
        """The gradient clipping to do. A strategy with `Capability.OWNS_CLIPPING` does it in its step."""

    def configure_model(self) -> None:
        """Call the user's `configure_model`, to build large layers in the context that the strategy has entered."""

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        """The optimizers, and their schedulers, that the user's module asks for."""

    def setup_dataloaders(self) -> None:
        """Shard the loaders of this stage and pass them through `Strategy.setup_dataloader`."""

    def restore(self) -> None:
        """Load the checkpoint that the user named, if any."""
