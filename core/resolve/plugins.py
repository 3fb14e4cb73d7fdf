"""The parts that a user passes in `plugins=[...]`, sorted by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, UnknownAliasError, near_names
from core.registry import base_class, plugin_manager
from core.registry.names import split_name
from core.resolve.candidates import show

if TYPE_CHECKING:
    from typing import TypeAlias

    Plugins: TypeAlias = dict[str, Any]

_OWN = ("precision", "checkpoint io", "cluster environment", "launcher")
"""The kinds that have their place in `plugins`."""
_ELSEWHERE = ("strategy", "accelerator", "logger")
"""The kinds that have an argument of their own, of the same name."""
_EXPECTED = f"instances, or registered names, of these kinds: {', '.join(_OWN)}"


def sort_plugins(plugins: object) -> Plugins:
    """Sort what the user passed by kind: objects and registered names.

    Raises:
        ConfigurationError: something else is among them, a name is ambiguous, or two are of one
            kind.
        UnknownAliasError: no provider offers a name.
    """
    if plugins is None:
        return {}
    listed = plugins if isinstance(plugins, list | tuple) else [plugins]
    found: Plugins = {}
    for plugin in listed:
        kind = _kind_of_name(plugin) if isinstance(plugin, str) else _kind_of_object(plugin)
        if kind in found:
            raise ConfigurationError(
                f"plugins has two parts of the kind {kind!r}: {show(found[kind])} and "
                f"{show(plugin)}. Keep one."
            )
        found[kind] = plugin
    return found


def _kind_of_object(plugin: object) -> str:
    for kind in _OWN:
        if isinstance(plugin, base_class(kind)):
            return kind
    for kind in _ELSEWHERE:
        if isinstance(plugin, base_class(kind)):
            raise ConfigurationError(
                f"plugins has a {type(plugin).__name__}: pass it as {kind}=..."
            )
    if isinstance(plugin, type):
        raise ConfigurationError(
            f"plugins has the class {plugin.__name__}: pass an instance, {plugin.__name__}()."
        )
    raise ConfigurationError(f"plugins has {plugin!r}: expected {_EXPECTED}.")


def _kind_of_name(name: str) -> str:
    alias = split_name(name)[1]
    offered = {kind: {offer.spec.alias for offer in plugin_manager().offers(kind)} for kind in _OWN}
    kinds = [kind for kind, aliases in offered.items() if alias in aliases]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigurationError(
            f"plugins has {name!r}, which is a {' and a '.join(kinds)}. Pass an instance instead."
        )
    near = near_names(alias, set().union(*offered.values()))
    if near:
        advice = f"Did you mean {' or '.join(map(repr, near))}?"
    else:
        advice = "`core list` shows what is installed."
    message = (
        f"plugins has {name!r}, which no installed package offers. Expected {_EXPECTED}. {advice}"
    )
    raise UnknownAliasError(message, kind="plugin", alias=alias, near=near)
