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
        """The callbacks of a stage, from those that the trainer has now: those of
        `configure_callbacks` replace others of their types.

        Raises:
            ModuleError: `configure_callbacks` returned something else.
            ConfigurationError: two callbacks with one state key.
        """
        if callbacks is not self._joined:
            self._without = callbacks
        brought: Any = None
        if overrides(module, "configure_callbacks"):
            brought = module.configure_callbacks()
        if isinstance(brought, Callback):
            brought = [brought]
        brought = list(brought or ())
        for callback in brought:
            if not isinstance(callback, Callback):
                raise ModuleError(
                    f"{type(module).__name__}.configure_callbacks returned "
                    f"{type(callback).__name__} {callback!r:.80}; expected a core.Callback, or a "
                    "list of them."
                )
        joined = self._without
        if brought:
            kept = [old for old in joined if not any(_replaces(new, old) for new in brought)]
            joined = [*kept, *brought]
            refuse_equal_keys(joined)
            joined.sort(key=lambda callback: callback.found_as == "checkpoint_callback")
        self._joined = joined
        return joined


def _replaces(new: Callback, old: Callback) -> bool:
    # two would draw on the same lines
    are_bars = new.found_as == old.found_as == "progress_bar_callback"
    return type(new) is type(old) or are_bars
