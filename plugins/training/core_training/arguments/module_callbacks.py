"""Callbacks that a module brings with it."""

from __future__ import annotations

from typing import Any

from core.contract import ModuleError
from core_training.arguments.defaults import refuse_equal_keys
from core_training.hooks.callback import Callback
from core_training.hooks.events import overrides


class ModuleCallbacks:
    """Adds a module's callbacks to the trainer's for one stage, and removes them when the next one
    begins.
    """

    def __init__(self) -> None:
        self._joined: list[Callback] | None = None
        self._without: list[Callback] = []

    def join(self, callbacks: list[Callback], module: Any) -> list[Callback]:
        """The callbacks of a stage, from those that the trainer has now; see
        `with_module_callbacks`.
        """
        if callbacks is not self._joined:
            self._without = callbacks
        self._joined = with_module_callbacks(self._without, module)
        return self._joined


def with_module_callbacks(callbacks: list[Callback], module: Any) -> list[Callback]:
    """The callbacks of a stage: those of `configure_callbacks` replace others of their types.

    Raises:
        ModuleError: `configure_callbacks` returned something else.
        ConfigurationError: two callbacks with one state key.
    """
    if not overrides(module, "configure_callbacks"):
        return callbacks
    brought = module.configure_callbacks()
    brought = [brought] if isinstance(brought, Callback) else list(brought or ())
    for callback in brought:
        if not isinstance(callback, Callback):
            raise ModuleError(
                f"{type(module).__name__}.configure_callbacks returned {type(callback).__name__} "
                f"{callback!r:.80}; expected a core.Callback, or a list of them."
            )
    if not brought:
        return callbacks
    kept = [old for old in callbacks if not any(_replaces(new, old) for new in brought)]
    joined = [*kept, *brought]
    refuse_equal_keys(joined)
    return sorted(joined, key=lambda callback: callback.found_as == "checkpoint_callback")


def _replaces(new: Callback, old: Callback) -> bool:
    # two would draw on the same lines
    are_bars = new.found_as == old.found_as == "progress_bar_callback"
    return type(new) is type(old) or are_bars
