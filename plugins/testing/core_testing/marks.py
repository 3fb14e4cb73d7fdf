"""Marks of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from core import Capability

F = TypeVar("F", bound="Callable[..., Any]")


def needs(capability: Capability) -> Callable[[F], F]:
    """Mark a test that runs only for plugins that declare a capability; for others it is left
    out.
    """

    def mark(test: F) -> F:
        test.needs = capability  # type: ignore[attr-defined]
        return test

    return mark


def unless(capability: Capability) -> Callable[[F], F]:
    """Mark a test that says nothing of plugins that declare a capability; for these it is left
    out.
    """

    def mark(test: F) -> F:
        test.unless = capability  # type: ignore[attr-defined]
        return test

    return mark


def launches(test: F) -> F:
    """Mark a test that makes processes of its own, and so stays out of the one that `own_process`
    makes.
    """
    test.launches = True  # type: ignore[attr-defined]
    return test


def on_devices(test: F) -> F:
    """Mark a test of an accelerator that needs its devices, and is skipped where there are none."""
    test.on_devices = True  # type: ignore[attr-defined]
    return test


def of_several(test: F) -> F:
    """Mark a test that says nothing about one process."""
    test.of_several = True  # type: ignore[attr-defined]
    return test


def of_trainer(test: F) -> F:
    """Mark a test that trains with core-training's Trainer, and is left out where that isn't
    installed.
    """
    test.of_trainer = True  # type: ignore[attr-defined]
    return test


def of_processes(what: str) -> Callable[[F], F]:
    """Mark a test of what ranks in one process can't show; there it is left out."""

    def mark(test: F) -> F:
        test.of_processes = what  # type: ignore[attr-defined]
        return test

    return mark
