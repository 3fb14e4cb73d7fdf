"""The protocol of strategies that set up module and optimizers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@runtime_checkable
class SetsUpJointly(Protocol):
    """A strategy with `Capability.JOINT_SETUP`: an engine takes the module and its optimizers in one call.

    It takes the place of `setup_module` and `setup_optimizer` in the call sequence of `Strategy`. A module without
    optimizers, to be evaluated, goes to `setup_module` all the same.
    """

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Set up everything at once, as an engine wants it.

        Returns:
            The module, wrapped or not; the optimizers; and the scheduler, as an engine steps it or as it came.
        """
