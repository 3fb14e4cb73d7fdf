"""Public names that installed packages add to those of core: `from core.callbacks import MemoryCheckpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.spec import normalize_alias
from core.registry.choice import choose
from core.registry.discovery import EXPORTS
from core.registry.install_hints import missing
from core.registry.known_plugins import known_aliases
from core.registry.loading import import_target
from core.registry.manager import plugin_manager

if TYPE_CHECKING:
    from core.registry.manager import PluginManager


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
    if not targets and (distribution := known_aliases(EXPORTS).get(alias)):
        raise ImportError(f"{full_name} comes with {distribution}. {missing(distribution)}", name=package)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
