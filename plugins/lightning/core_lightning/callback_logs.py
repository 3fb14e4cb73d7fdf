"""`self.log` of callbacks, which Lightning gives to those of a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import Callback

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer

_NAMES = ("log", "log_dict")


class CallbackLogs(Callback):
    """Gives the Trainer's callbacks the module's `log` and `log_dict` for a stage, unless they have their own."""

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Before the `setup` of the callbacks themselves."""
        for callback in trainer.callbacks:
            for name in _NAMES:
                if hasattr(module, name) and not hasattr(callback, name):
                    setattr(callback, name, getattr(module, name))

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Remove them, so that no callback keeps the module."""
        for callback in trainer.callbacks:
            for name in _NAMES:
                if vars(callback).get(name) == getattr(module, name, None):
                    vars(callback).pop(name, None)
