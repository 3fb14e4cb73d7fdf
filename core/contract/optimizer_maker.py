"""The protocol of strategies that make optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn


@runtime_checkable
class MakesOptimizers(Protocol):
    """A strategy that is asked for optimizers in the module's place: an engine's own configuration may name them.

    It is asked if it has the method. With `Capability.MAKES_OPTIMIZERS` the module needs no `configure_optimizers`.
    """

    def configure_optimizers(self, module: nn.Module) -> Any:
        """All ranks. The optimizers and schedulers of a module, in any form that a module may give them.

        Where the engine's configuration names none, they are those of `module.configure_optimizers()`.
        """
