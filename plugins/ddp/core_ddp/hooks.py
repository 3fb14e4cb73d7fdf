"""Hooks of parameters, which run before torch averages gradients over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from torch import nn


def late_hooks(module: nn.Module) -> Iterator[tuple[str, object]]:
    """The hooks that use a gradient once it is there, with their parameters' names; not those by
    which core refuses.
    """
    for name, parameter in module.named_parameters():
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            if parameter.requires_grad and not str(getattr(hook, "__module__", "")).startswith(
                "core."
            ):
                yield name, hook


def refuse_late_hooks(module: nn.Module, known: Container[int] = ()) -> None:
    """Refuse hooks that use a gradient once it is there: a step in backward would let ranks go
    apart.

    Args:
        module: the user's.
        known: identities of hooks by which a strategy communicates.

    Raises:
        ModuleError: with the parameter's name.
    """
    for name, hook in late_hooks(module):
        if id(hook) not in known:
            raise ModuleError(
                f"{name!r} of {type(module).__name__} has a hook "
                "(register_post_accumulate_grad_hook), which would use this rank's gradient before "
                "it is averaged: an optimizer that steps there lets ranks go apart. Leave steps to "
                "the optimizer, and change gradients in on_before_optimizer_step."
            )
