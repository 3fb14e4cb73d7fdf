"""Parameters that come into a module after it was set up: no strategy shards them, or averages
their gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle


def refuse_new(strategy: str, module: nn.Module, *, refreshes: bool) -> Callable[[], None]:
    """Make it an error that a parameter gets gradients which comes into the module from now on.

    torch's hooks are called where something is put into a module, and never in a step.

    Args:
        strategy: the name of its class.
        module: the user's own.
        refreshes: the strategy has its own `refresh_modules`.

    Returns:
        Undoes it.
    """
    from torch.nn.modules.module import (
        register_module_module_registration_hook,
        register_module_parameter_registration_hook,
    )

    known = set(module.parameters())

    def refuse(parameter: Tensor) -> None:
        name = next((name for name, own in module.named_parameters() if own is parameter), None)
        if name is not None:
            raise ConfigurationError(_message(strategy, name, refreshes))

    def expect_none(into: nn.Module, newcomers: Iterable[Tensor | None]) -> None:
        if any(part is into for part in module.modules()):
            new = (
                own
                for own in newcomers
                if own is not None and own not in known and own.requires_grad
            )
            hooks.extend(own.register_post_accumulate_grad_hook(refuse) for own in new)

    hooks: list[RemovableHandle] = [
        register_module_parameter_registration_hook(
            lambda into, name, new: expect_none(into, [new])
        ),
        register_module_module_registration_hook(
            lambda into, name, new: expect_none(into, [] if new is None else new.parameters())
        ),
    ]

    def undo() -> None:
        while hooks:
            hooks.pop().remove()

    return undo


def _message(strategy: str, name: str, refreshes: bool) -> str:
    if not refreshes:
        cure = "Put it into the module before: where the module is made, or in configure_model."
    else:
        cure = (
            "Put it into the module before fit or in on_train_epoch_start, where the module is "
            "wrapped anew if the strategy's options allow that; in a loop of your own, call "
            "fabric.setup with your own module again."
        )
    return (
        f"The parameter {name!r} gets gradients, and has come into the module after it was set up. "
        f"{strategy} averages gradients of the others only, so that the ranks would drift apart. "
        f"{cure}"
    )
