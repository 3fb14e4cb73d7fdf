"""Changes of modules and optimizers from their set-up to the end, where they are undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.capability import Capability
from core.session.changed_modules import refuse_new
from core.session.optimizer_state import check_later_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from core.session.divergence import Alike


class Guards:
    """The changes and checks of one session. Who trains alone has none of the checks.

    Attributes:
        alike: compares what ranks have alike, once there are optimizers.
    """

    def __init__(self, session: Any) -> None:  # a Session, whose module imports this one
        self.alike: Alike | None = None
        self._session = session
        self._undo: list[Callable[[], None]] = []
        self._accepted: dict[nn.Module, Callable[[], None]] = {}

    def change_units(self, module: nn.Module) -> None:
        """Before the set-up. Save the activations of units first, so that a compiler sees it."""
        session = self._session
        if session.activations is not None:
            device_type = session.strategy.root_device.type
            self._undo.append(session.activations(module, device_type))
        if session.unit_compiler is not None:
            self._undo.append(session.unit_compiler(module))

    def watch_module(self, module: nn.Module, *, refreshes: bool) -> None:
        """Refuse parameters that come into the module from now on. `refreshes` says that the
        strategy has its own `refresh_modules`.
        """
        strategy = self._session.strategy
        if module in self._accepted:
            self._accepted.pop(module)()
        # A world of one may be a peer among others.
        if strategy.world_size > 1 or Capability.ELASTIC in strategy.capabilities:
            self._accepted[module] = refuse_new(type(strategy).__name__, module, refreshes)

    def watch_optimizers(self, added: Sequence[Optimizer]) -> None:
        """Compare what ranks have alike after steps, and look at groups that are added later."""
        session = self._session
        strategy = session.strategy
        is_cuda = strategy.root_device.type == "cuda"
        if session.compiles and is_cuda and strategy.is_global_zero:
            from core.session.equal_masks import warn_of_equal_masks

            warn_of_equal_masks(handle.module for handle in session.handles)
        if strategy.world_size > 1:
            for optimizer in added:
                if hasattr(optimizer, "add_param_group"):
                    self._undo.append(check_later_groups(optimizer, session.handles))
        if not (session.has_peers and added):
            return
        if self.alike is None:
            from core.session.divergence import Alike  # who trains alone waits for none of it

            self.alike = Alike(session)
        # An engine steps optimizers in the middle of what it does.
        if Capability.JOINT_SETUP not in strategy.capabilities:
            self._undo += [self.alike.watch(optimizer) for optimizer in added]

    def end(self) -> None:
        """Idempotent. Undo all of it."""
        self.alike = None
        while self._undo:
            self._undo.pop()()
        while self._accepted:
            self._accepted.popitem()[1]()
