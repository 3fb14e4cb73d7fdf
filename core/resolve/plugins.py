"""The parts that a user passes in `plugins=[...]`, sorted by kind."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from core.contract import (
    KINDS,
    Accelerator,
    CheckpointIO,
    ClusterEnvironment,
    ConfigurationError,
    Launcher,
    Logger,
    Precision,
    Strategy,
    UnknownAliasError,
)
from core.registry import plugin_manager
from core.registry.names import split_name

if TYPE_CHECKING:
    from typing import TypeAlias

    Plugins: TypeAlias = dict[str, Any]

_BASES: dict[str, type] = {
    "precision": Precision,
    "checkpoint io": CheckpointIO,
    "cluster environment": ClusterEnvironment,
    "launcher": Launcher,
}

_OTHER_ARGUMENTS: dict[type, str] = {Strategy: "strategy", Accelerator: "accelerator", Logger: "logger"}

_EXPECTED = f"instances, or registered names, of these kinds: {', '.join(_BASES)}"


def sort_plugins(plugins: Any) -> Plugins:
    """By kind, what the user passed: an object, or a registered name.

    Raises:
        ConfigurationError: something else is among them, a name is ambiguous, or two are of one kind.
        UnknownAliasError: nobody offers a name.
    """
    listed = plugins if isinstance(plugins, list | tuple) else [] if plugins is None else [plugins]
    found: Plugins = {}
    for plugin in listed:
        kind = _kind_of_name(plugin) if isinstance(plugin, str) else _kind_of_object(plugin)
        if kind in found:
            raise ConfigurationError(
                f"plugins has two parts of the kind {kind!r}: {_show(found[kind])} and {_show(plugin)}. Keep one."
            )
        found[kind] = plugin
    return found


def _kind_of_object(plugin: object) -> str:
    for kind, base in _BASES.items():
        if isinstance(plugin, base):
            return kind
    for base, argument in _OTHER_ARGUMENTS.items():
        if isinstance(plugin, base):
            raise ConfigurationError(f"plugins has a {type(plugin).__name__}: pass it as {argument}=...")
    if isinstance(plugin, type):
        raise ConfigurationError(f"plugins has the class {plugin.__name__}: pass an instance, {plugin.__name__}().")
    raise ConfigurationError(f"plugins has {plugin!r}: expected {_EXPECTED}.")


def _kind_of_name(name: str) -> str:
    alias = split_name(name)[1]
    offered = {kind: {offer.spec.alias for offer in plugin_manager().offers(kind)} for kind in _BASES}
    kinds = [kind for kind, aliases in offered.items() if alias in aliases]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigurationError(f"plugins has {name!r}, which is a {' and a '.join(kinds)}. Pass an instance instead.")
    near = difflib.get_close_matches(alias, sorted(set().union(*offered.values())), n=3)
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"See {_listings()}."
    message = f"plugins has {name!r}, which nobody offers. Expected {_EXPECTED}. {advice}"
    raise UnknownAliasError(message, kind="plugin", alias=alias, near=near)


def _listings() -> str:
    return ", ".join(f"`core list-{KINDS[kind].plural}`" for kind in _BASES)


def _show(plugin: Any) -> str:
    return repr(plugin) if isinstance(plugin, str) else type(plugin).__name__
