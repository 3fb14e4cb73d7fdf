"""The pluggy hook specs: one a kind, through which providers offer their specs.

Every provider is one pluggy plugin, named after its distribution. For an installed distribution the
implementations are made from the text of its entry points, so nothing is imported; a plugin may
also implement a hook in code:

    from core import Spec, hookimpl

    @hookimpl
    def core_strategies():
        yield Spec("strategy", "acme", "core_acme:AcmeStrategy", provider="core-acme")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core.contract.spec import Spec

PROJECT = "core"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as its implementation of a hook."""

F = TypeVar("F", bound="Callable[..., Any]")


def empty_hook(function: F) -> F:
    """Mark a hook whose default does nothing that isn't done anyway, so that it is never called."""
    function._is_empty_hook = True  # type: ignore[attr-defined]
    return function


def is_empty_hook(function: object) -> bool:
    """True for a function that `empty_hook` has marked."""
    return getattr(function, "_is_empty_hook", False)


@hookspec
def core_strategies() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of strategies. Targets subclass `core.Strategy`, or are factories that return
    one.
    """


@hookspec
def core_accelerators() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of accelerators. Targets subclass `core.Accelerator`."""


@hookspec
def core_precisions() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of precisions. Targets subclass `core.Precision`, or are factories that
    return one.
    """


@hookspec
def core_checkpoint_ios() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of checkpoint IOs. Targets subclass `core.CheckpointIO`."""


@hookspec
def core_checkpoint_readers() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of checkpoint readers. Targets subclass `core.CheckpointReader`."""


@hookspec
def core_cluster_environments() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of cluster environments. Targets subclass `core.ClusterEnvironment`."""


@hookspec
def core_launchers() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of launchers. Targets subclass `core.Launcher`."""


@hookspec
def core_loggers() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of loggers. Targets subclass `core.Logger`."""


@hookspec
def core_commands() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield the specs of commands of the program `core`. Targets are `click.Command`s, or functions
    that return one.
    """
