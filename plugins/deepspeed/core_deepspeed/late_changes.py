"""What an optimizer can't take any more when DeepSpeed has laid its parameters out: it wouldn't step them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.optim import Optimizer


class LateChanges:
    """Makes it an error to unfreeze an optimizer's parameter, or to add a group; costs nothing a step.

    Args:
        optimizer: that the user has set up.
        parameters: that it holds.
    """

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        self._optimizer = optimizer
        self._handles = [_on_gradient(parameter) for parameter in parameters if not parameter.requires_grad]
        vars(optimizer)["add_param_group"] = _refuse_group

    def allow(self) -> None:
        """Idempotent. As before."""
        vars(self._optimizer).pop("add_param_group", None)
        for handle in self._handles:
            handle.remove()


def _on_gradient(parameter: Tensor) -> Any:
    """A hook for the first gradient of a frozen parameter; torch takes hooks of those that aren't frozen only."""
    parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(_refuse_gradient)
    finally:
        parameter.requires_grad_(False)


def _refuse_gradient(parameter: Tensor) -> None:
    raise ConfigurationError(
        f"A parameter of shape {tuple(getattr(parameter, 'ds_shape', parameter.shape))} gets gradients, and was frozen "
        "when it was set up: DeepSpeed has laid out the others only, and wouldn't step it. Freeze and unfreeze between "
        "two calls of fit, or leave it trainable, in a group with lr=0."
    )


def _refuse_group(group: Any) -> None:
    raise ConfigurationError(
        "add_param_group: DeepSpeed has laid out the optimizer's parameters when it was set up, and steps no others. "
        "Give it all groups before, those that are to be trained later with lr=0; or add them between two calls of fit."
    )
