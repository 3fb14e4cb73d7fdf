"""Modules and functions that users name: event hooks, preludes, and public names that packages add
to core's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from core.contract.hookspecs import PROJECT
from core.contract.spec import normalize_alias
from core.registry import refusals
from core.registry.alias_choice import choose
from core.registry.class_loading import import_target
from core.registry.discovery import EXPORTS, HOOKS, PRELUDES
from core.registry.known_plugins import known_aliases, missing
from core.registry.manager import PluginManager, plugin_manager

if TYPE_CHECKING:
    from collections.abc import Callable


def load_hooks(name: str, specifications: type, manager: PluginManager | None = None) -> Any:
    """Import a module with event hooks (entry-point group `core.hooks`) that a user has named.

    Args:
        name: alias, or `"provider:alias"`.
        specifications: the class with the hook specs that it may implement: `core.EventHooks`.
        manager: knows what is installed; by default the manager of this process.

    Returns:
        The module or object, checked against them. It isn't registered anywhere: a run
        registers it in a pluggy manager of its own, so that it hears of that run alone.

    Raises:
        ConfigurationError: no provider offers it, or several do, or it is blocked or incompatible.
        PluginLoadError: it can't be imported, or implements no event hook.
    """
    offer = choose(HOOKS, name, manager or plugin_manager())
    plugin = import_target(offer)
    checker = pluggy.PluginManager(PROJECT)
    checker.add_hookspecs(specifications)
    try:
        checker.register(plugin)
        checker.check_pending()
    except pluggy.PluginValidationError as cause:
        raise refusals.not_loaded(offer, str(cause), cause) from cause
    if not checker.get_hookcallers(plugin):
        raise refusals.not_loaded(offer, "nothing in it is marked with `core.hookimpl`")
    return plugin


def load_prelude(name: str, manager: PluginManager | None = None) -> Callable[[], object]:
    """Import a prelude (entry-point group `core.preludes`) that a user has named.

    Args:
        name: alias, or `"provider:alias"`.
        manager: knows what is installed; by default the manager of this process.

    Returns:
        The function, which takes no arguments. Its attribute `owns_processes`, if it is there and
        true, says that programs of its kind start their processes themselves. `explain(path)` gives
        a report on a script, and whether
        nothing is missing that it needs: `core run --explain`.

    Raises:
        ConfigurationError: no provider offers it, or several do, or it is blocked or incompatible.
        PluginLoadError: it can't be imported, or can't be called.
    """
    offer = choose(PRELUDES, name, manager or plugin_manager())
    prelude = import_target(offer)
    if not callable(prelude):
        raise refusals.not_loaded(
            offer, f"expected a function without arguments; got {prelude!r:.80}"
        )
    return prelude  # type: ignore[no-any-return]


def load_export(package: str, name: str, manager: PluginManager | None = None) -> Any:
    """Import what an installed package offers as `package.name` (entry-point group `core.exports`).

    Raises:
        AttributeError: nothing offers it.
        ImportError: a package of this project offers it, and isn't installed.
        CoreError: it is blocked, in conflict or incompatible, or can't be imported.
    """
    manager = manager or plugin_manager()
    full_name = f"{package}.{name}"
    alias = normalize_alias(full_name)
    targets = {offer.spec.target.rpartition(":")[2] for offer in manager.offers(EXPORTS, alias)}
    if name in targets:
        return import_target(choose(EXPORTS, full_name, manager))
    distribution = known_aliases(EXPORTS).get(alias)
    if not targets and distribution:
        raise ImportError(
            f"{full_name} comes with {distribution}. {missing(distribution)}", name=package
        )
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
