"""Preludes: functions that `core run` calls before a user's script. A user names those that are to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.registry import refusals
from core.registry.choice import choose
from core.registry.discovery import PRELUDES
from core.registry.loading import import_target
from core.registry.manager import PluginManager, plugin_manager

if TYPE_CHECKING:
    from collections.abc import Callable


def load_prelude(name: str, manager: PluginManager | None = None) -> Callable[[], object]:
    """Import a prelude (entry-point group `core.preludes`) that a user has named.

    Args:
        name: alias, or `"provider:alias"`.
        manager: knows what is installed; by default the manager of this process.

    Returns:
        The function, which takes no arguments. Its attribute `owns_processes`, if it is there and true, says that
        programs of its kind start their processes themselves. `explain(path)` gives a report on a script, and whether
        nothing is missing that it needs: `core run --explain`.

    Raises:
        ConfigurationError: no provider offers it, or several do, or it is blocked or incompatible.
        PluginLoadError: it can't be imported, or can't be called.
    """
    offer = choose(PRELUDES, name, manager or plugin_manager())
    prelude = import_target(offer)
    if not callable(prelude):
        raise refusals.not_loaded(offer, f"expected a function without arguments; got {prelude!r:.80}")
    return prelude  # type: ignore[no-any-return]
