"""The error for a checkpoint that no Trainer of core has saved, with its content and the cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.contract import CheckpointError, TensorDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import PathLike

_USUAL_NAMES = ("state_dict", "model_state_dict", "model", "module", "net", "weights")


def refusal(saved: Mapping[str, Any], path: PathLike) -> CheckpointError:
    """The error that says what it is, and how it is loaded.

    Args:
        saved: what is in it, or its description.
        path: of it.
    """
    items = {f"[{name!r}]": saved[name] for name in _USUAL_NAMES if name in saved}
    cure = "Read files of your own with torch.load, and what Fabric saved with fabric.load."
    for item, value in {**items, "": saved}.items():
        kind = torch.Tensor | TensorDescription
        is_filled = isinstance(value, dict) and bool(value)
        if is_filled and all(isinstance(each, kind) for each in value.values()):
            cure = (
                "Load the state_dict in it into the module before the run: "
                f"module.load_state_dict(core.checkpoint.load_checkpoint({str(path)!r}){item}); "
                "with Fabric, by fabric.load_raw, or fabric.load if Fabric saved it."
            )
            break
    return CheckpointError(
        f"{path} is not a checkpoint of a Trainer: it has {sorted(map(str, saved))[:8]}. {cure}"
    )
