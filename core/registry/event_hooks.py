"""Modules with event hooks. A user names those that are to run: to install one isn't to agree that it runs."""

from __future__ import annotations

from typing import Any

import pluggy

from core.contract.hookspecs import PROJECT, EventHooks
from core.registry import refusals
from core.registry.choice import choose
from core.registry.discovery import HOOKS
from core.registry.loading import import_target
from core.registry.manager import PluginManager, plugin_manager


def load_hooks(name: str, manager: PluginManager | None = None) -> Any:
    """Import a module with event hooks (entry-point group `core.hooks`) that a user has named.

    Args:
        name: alias, or `"provider:alias"`.
        manager: knows what is installed; by default the manager of this process.

    Returns:
        The module or object, checked against `core.EventHooks`. It isn't registered anywhere: a run registers it in a
        pluggy manager of its own, so that it hears of that run alone.

    Raises:
        ConfigurationError: no provider offers it, or several do, or it is blocked or incompatible.
        PluginLoadError: it can't be imported, or implements no event hook.
    """
    offer = choose(HOOKS, name, manager or plugin_manager())
    plugin = import_target(offer)
    checker = pluggy.PluginManager(PROJECT)
    checker.add_hookspecs(EventHooks)
    try:
        checker.register(plugin)
        checker.check_pending()
    except pluggy.PluginValidationError as cause:
        raise refusals.not_loaded(offer, str(cause), cause) from cause
    if not checker.get_hookcallers(plugin):
        raise refusals.not_loaded(offer, "nothing in it is marked with `core.hookimpl`")
    return plugin
