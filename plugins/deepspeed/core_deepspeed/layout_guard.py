"""Changes that an optimizer can't take after DeepSpeed has laid out its parameters: it wouldn't
step the new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core.strategies import FrozenParameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.optim import Optimizer

_NOT_STEPPED = (
    "DeepSpeed has laid out the others only, and wouldn't step it. Freeze and unfreeze between two "
    "calls of fit, or leave it trainable, in a group with lr=0."
)


class LayoutGuard:
    """Makes it an error to unfreeze an optimizer's parameter, or to add a group; costs nothing a
    step.

    Args:
        optimizer: that the user has set up.
        named: parameters that it holds, with their names.
    """

    def __init__(self, optimizer: Optimizer, named: Iterable[tuple[str, Tensor]]) -> None:
        self._optimizer = optimizer
        self._frozen = FrozenParameters(_NOT_STEPPED)
        self._frozen.watch(named)
        vars(optimizer)["add_param_group"] = _refuse_group

    def allow(self) -> None:
        """Idempotent. As before."""
        vars(self._optimizer).pop("add_param_group", None)
        self._frozen.forget()


def _refuse_group(group: Any) -> None:
    raise ConfigurationError(
        "add_param_group: DeepSpeed has laid out the optimizer's parameters when it was set up, "
        "and steps no others. Give it all groups before, those that are to be trained later with "
        "lr=0; or add them between two calls of fit."
    )
