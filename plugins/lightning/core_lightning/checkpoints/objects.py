"""Objects in checkpoints: kept if the user says so, and unpickled only for one who says that the
file is trusted.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from core import Callback, CheckpointError, Trainer
from core.checkpoint import to_plain

_KEY = "PickledObjects"
_NOTHING = pickle.dumps({})
_ATTRIBUTE = "_objects_for_checkpoints"


class PickledObjects(Callback):
    """Keeps the module's hyperparameters that aren't plain, such as a loss or an encoder, pickled
    in each checkpoint.

    So it does with what the module's `on_save_checkpoint` adds. Without it they are left out, with
    a warning. To read a checkpoint executes none of them:
    `LightningModule.load_from_checkpoint(path, trusted=True)` does, for a file whose writer you
    know, and `fit` with a `ckpt_path` where this callback is trusting.

    Args:
        trusted: you know who has written the checkpoints that this program goes on from.
    """

    def __init__(self, *, trusted: bool = False) -> None:
        self.trusted = trusted

    @property
    def state_key(self) -> str:
        """The one name under which they are found again."""
        return _KEY

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Add them, as bytes."""
        hparams: dict[str, Any] = getattr(module, "hparams", {})
        kept = {name: value for name, value in hparams.items() if not is_plain(value)}
        if kept:
            checkpoint["pickle"] = pickle.dumps(kept)
        objects = objects_of(module)
        if objects:
            checkpoint["pickle_of_hook"] = pickle.dumps(objects)

    def before_restore(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Unpickle what the module's `on_load_checkpoint` expects, if that is trusted."""
        if self.trusted and "pickle_of_hook" in checkpoint:
            give_objects(module, pickle.loads(checkpoint["pickle_of_hook"]))


def objects_of(module: Any) -> dict[str, Any]:
    """The objects, not plain, that the module's hook has added: sections, and hyperparameters under
    their own key.
    """
    found: dict[str, Any] = getattr(module, _ATTRIBUTE, {})
    return found


def give_objects(module: Any, objects: dict[str, Any]) -> None:
    """Make them available to `on_load_checkpoint` of the module."""
    module.__dict__[_ATTRIBUTE] = objects


@contextmanager
def found_by(cls: type[Any], objects: dict[str, Any]) -> Iterator[None]:
    """Make them available to modules of a class that are made meanwhile, which have none of their
    own.
    """
    setattr(cls, _ATTRIBUTE, objects)
    try:
        yield
    finally:
        delattr(cls, _ATTRIBUTE)


def in_section(callbacks: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpickle what `PickledObjects` has kept among the states of callbacks, which executes what it
    says.

    The result is hyperparameters, and what the module's hook has added.
    """
    section = callbacks.get(_KEY, {}).get("section", {})
    hparams = pickle.loads(section.get("pickle", _NOTHING))
    of_hook = pickle.loads(section.get("pickle_of_hook", _NOTHING))
    return {**hparams, **of_hook.get("hyper_parameters", {})}, of_hook


def is_plain(value: Any) -> bool:
    """True if a checkpoint can hold it."""
    try:
        to_plain({"value": value})
    except CheckpointError:
        return False
    return True
