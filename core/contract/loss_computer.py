"""The protocol of strategies that compute the loss of a batch in a way of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@runtime_checkable
class ComputesLoss(Protocol):
    """A strategy with `Capability.COMPUTES_LOSS`: the user's step runs for parts of a batch, or on some ranks only.

    A schedule of a pipeline does so. `Fabric.step` asks for it, since the user's own loop can't; the Trainer calls
    `step_callable("training_step")`, which does the same.
    """

    def compute_loss(self, step: Callable[[Any], Any], batch: Any, module: nn.Module) -> Any:
        """All ranks. Run the user's step on a batch, on the device, in as many calls as it takes.

        Args:
            step: `(batch) -> output`: the loss, or a dict with it under `"loss"` and its `"weight"`. It calls the
                module as it was set up.
            batch: of the user's own structure.
            module: that was set up, whose loss it is.

        Returns:
            On all ranks an output of the same form, whose loss has a graph for `backward`.
        """
