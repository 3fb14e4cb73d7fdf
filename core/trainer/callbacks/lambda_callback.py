"""A callback made of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, EventHooks, did_you_mean
from core.trainer.hooks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOKS = [name for name in vars(EventHooks) if not name.startswith("_")]


class LambdaCallback(Callback):
    """Calls a function in a hook: `LambdaCallback(on_train_end=lambda trainer, module: print("done"))`."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        """Create the callback from functions, by the hooks' names; they get the hooks' arguments.

        Raises:
            ConfigurationError: no such hook, or not a function.
        """
        for name, function in hooks.items():
            if name not in _HOOKS:
                hint = did_you_mean(name, _HOOKS)
                raise ConfigurationError(f"LambdaCallback got {name!r}; expected names of hooks.{hint}")
            if not callable(function):
                raise ConfigurationError(f"LambdaCallback({name}={function!r}): expected a function.")
            setattr(self, name, function)
