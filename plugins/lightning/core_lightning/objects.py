"""Objects in checkpoints: kept if the user says so, and unpickled only for one who says that the file is trusted."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch

from core import Callback, CheckpointError
from core.checkpoint import load_checkpoint, to_plain

if TYPE_CHECKING:
    from torch import nn

    from core import PathLike, Trainer

_KEY = "PickledObjects"


class PickledObjects(Callback):
    """Keeps the module's hyperparameters that aren't plain, such as a loss or an encoder, pickled in each checkpoint.

    Without it they are left out, with a warning. To read a checkpoint executes none of them:
    `LightningModule.load_from_checkpoint(path, trusted=True)` does, for a file whose writer you know.
    """

    @property
    def state_key(self) -> str:
        """The one name under which they are found again."""
        return _KEY

    def on_save_checkpoint(self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """Add them, as bytes."""
        hparams: dict[str, Any] = getattr(module, "hparams", {})
        kept = {name: value for name, value in hparams.items() if not _is_plain(value)}
        if kept:
            checkpoint["pickle"] = pickle.dumps(kept)


def unpickle(path: PathLike) -> dict[str, Any]:
    """The hyperparameters that `PickledObjects` has kept, or Lightning as objects. Executes what the file says.

    Raises:
        CheckpointError: they can't be unpickled.
    """
    state = load_checkpoint(path)
    content = state.get("callbacks", {}).get(_KEY, {}).get("section", {}).get("pickle")
    try:
        if content is not None:
            return dict(pickle.loads(content))
        if "lightning" not in state.get("format", {}):
            return {}
        saved = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise CheckpointError(f"The objects in {str(path)!r} can't be unpickled: {error!r}.") from error
    return {name: value for name, value in saved.get("hyper_parameters", {}).items() if not _is_plain(value)}


def _is_plain(value: Any) -> bool:
    try:
        to_plain({"value": value})
    except CheckpointError:
        return False
    return True
