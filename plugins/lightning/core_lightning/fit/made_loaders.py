"""Loaders are made in Lightning's order: what draws when it is made, such as a random data set,
draws the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from core import Callback
from core_lightning.utilities.model_helpers import is_overridden
from core_lightning.utilities.seeding import isolate_rng

_TRAIN, _VALIDATION = "train_dataloader", "val_dataloader"


class MadeLoaders(Callback):
    """Makes `fit` ask for validation loaders when Lightning does.

    With a sanity check that is before it asks for training's, and their draws are undone; without
    one it is after. core asks for them first. For this, the two hooks of module and data module are
    replaced until `fit` begins.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, dict[str, Any]]] = []

    def setup(self, trainer: Any, module: nn.Module, stage: str) -> None:
        """Replace the hooks."""
        if stage != "fit":
            return
        checks = trainer.options.num_sanity_val_steps != 0 and trainer.ckpt_path is None
        for owner in (trainer.datamodule, module):
            if trainer.passed.get("val") is None and is_overridden(_VALIDATION, owner):
                makes_train = trainer.passed.get("train") is None and is_overridden(_TRAIN, owner)
                self._replace(owner, checks=checks, makes_train=makes_train)

    def _replace(self, owner: Any, *, checks: bool, makes_train: bool) -> None:
        own = {
            name: owner.__dict__[name] for name in (_TRAIN, _VALIDATION) if name in owner.__dict__
        }
        self._replaced.append((owner, own))
        if checks:
            owner.__dict__[_VALIDATION] = isolate_rng()(getattr(owner, _VALIDATION))
        elif makes_train:
            once = functools.cache(getattr(owner, _TRAIN))
            owner.__dict__[_VALIDATION] = _after(once, getattr(owner, _VALIDATION))
            owner.__dict__[_TRAIN] = once

    def on_fit_start(self, trainer: Any, module: nn.Module) -> None:
        """Restore the hooks: loaders that are asked for later are made when they are."""
        self._restore()

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """Restore the hooks."""
        self._restore()

    def _restore(self) -> None:
        for owner, own in self._replaced:
            for name in (_TRAIN, _VALIDATION):
                owner.__dict__.pop(name, None)
            owner.__dict__.update(own)
        self._replaced = []


def _after(first: Callable[[], Any], then: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        first()
        return then()

    return made
