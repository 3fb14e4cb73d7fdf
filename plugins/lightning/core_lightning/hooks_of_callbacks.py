"""Hooks that are callbacks' alone under Lightning, and that core calls for modules too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from core import Callback
from core.contract import empty_hook

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer

_NAMES = ("on_exception", "on_sanity_check_start", "on_sanity_check_end")


class HooksOfCallbacks(Callback):
    """Keeps core from calling methods of a module that have such a name, for a stage."""

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Before any of them."""
        for name in _NAMES:
            if name not in vars(module) and (method := getattr(module, name, None)) is not None:
                vars(module)[name] = empty_hook(partial(method))

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """After all of them."""
        for name in _NAMES:
            if isinstance(vars(module).get(name), partial):
                del vars(module)[name]
