"""Callbacks that are made of something else: functions, or a pluggy plugin with event hooks."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from core.contract import ConfigurationError, did_you_mean, hookimpl
from core_training.hooks.callback import Callback
from core_training.hooks.event_hooks import EventHooks

if TYPE_CHECKING:
    from collections.abc import Callable


_HOOKS = [name for name in vars(EventHooks) if not name.startswith("_")]


class LambdaCallback(Callback):
    """Calls a function in a hook:
    `LambdaCallback(on_train_end=lambda trainer, module: print("done"))`.
    """

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        """Create the callback from functions, by the hooks' names; they get the hooks' arguments.

        Raises:
            ConfigurationError: no such hook.
        """
        for name, function in hooks.items():
            if name not in _HOOKS:
                hint = did_you_mean(name, _HOOKS)
                raise ConfigurationError(
                    f"LambdaCallback got {name!r}; expected names of hooks.{hint}"
                )
            setattr(self, name, function)


class HookPlugin(Callback):
    """A callback with just those hooks that a plugin implements, so that the others cost nothing.

    Attributes:
        name: under which the user asked for the plugin.
        plugin: a module, or an object, with functions that `core.hookimpl` marks.
    """

    def __init__(self, name: str, plugin: Any) -> None:
        self.name = name
        self.plugin = plugin

    def __reduce__(self) -> tuple[Callable[..., Callback], tuple[str, Any]]:
        # The class was made for this plugin and stands in no module; nor does pickle take modules.
        if isinstance(self.plugin, ModuleType):
            return hook_callback, (self.name, self.plugin.__name__)
        return hook_callback, (self.name, self.plugin)

    @property
    def state_key(self) -> str:
        """The name, since several plugins are of this class."""
        return f"{HookPlugin.__qualname__}:{self.name}"


def hook_callback(name: str, plugin: object) -> Callback:
    """Make a callback of a plugin that `core.registry.load_hooks` has checked.

    Args:
        name: under which the user asked for it.
        plugin: the module or object, or a module's name.
    """
    if isinstance(plugin, str):
        plugin = importlib.import_module(plugin)
    manager = pluggy.PluginManager(hookimpl.project_name)
    manager.add_hookspecs(EventHooks)
    manager.register(plugin, name)
    methods = {
        caller.name: _method(caller, name) for caller in manager.get_hookcallers(plugin) or ()
    }
    listener: type[HookPlugin] = type(HookPlugin.__name__, (HookPlugin,), methods)
    return listener(name, plugin)


def _method(caller: pluggy.HookCaller, name: str) -> Callable[..., None]:
    assert caller.spec is not None
    parameters = caller.spec.argnames

    def call(self: HookPlugin, *args: Any) -> None:
        try:
            caller(**dict(zip(parameters, args, strict=True)))
        except BaseException as error:
            error.add_note(f"It was raised in {caller.name} of the event hooks {name!r}.")
            raise

    return call
