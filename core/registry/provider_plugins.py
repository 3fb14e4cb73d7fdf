"""Providers as pluggy sees them: objects with hook implementations that are made from text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from core.contract.hookspecs import hookimpl
from core.contract.kinds import KINDS
from core.registry.names import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.spec import Spec
    from core.registry.discovery import Provider


class ProviderPlugin:
    """An installed provider, or the built-ins. Nothing is imported to make it."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        offered: dict[str, list[Spec]] = {}
        for spec in provider.specs:
            offered.setdefault(spec.kind, []).append(spec)
        # pluggy finds hook implementations by their names among an object's attributes.
        for kind, specs in offered.items():
            setattr(self, KINDS[kind].hook, _implementation(functools.partial(tuple, specs)))

    def __dir__(self) -> list[str]:
        """The names of the hooks alone: pluggy looks at every name."""
        return [*set(vars(self)) - {"provider"}]

    def __repr__(self) -> str:
        return f"<provider {self.provider.name} {self.provider.version}>"


class InProcessPlugin:
    """The provider of the running process: specs, and beside each the object itself."""

    def __init__(self) -> None:
        self.registered: dict[tuple[str, str], tuple[Spec, Any]] = {}
        for kind in KINDS.values():
            setattr(self, kind.hook, _implementation(functools.partial(self.specs, kind.name)))

    def specs(self, kind: str) -> tuple[Spec, ...]:
        """The specs of one kind, in the order of registration."""
        return tuple(spec for spec, _ in self.registered.values() if spec.kind == kind)

    def __dir__(self) -> list[str]:
        """The names of the hooks alone."""
        return [kind.hook for kind in KINDS.values()]

    def __repr__(self) -> str:
        return f"<provider {IN_PROCESS}>"


def _implementation(offer: Callable[[], tuple[Spec, ...]]) -> Callable[[], tuple[Spec, ...]]:
    @hookimpl
    def implementation() -> tuple[Spec, ...]:
        return offer()

    return implementation
