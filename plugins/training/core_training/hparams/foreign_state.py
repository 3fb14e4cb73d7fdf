"""The error for a checkpoint that no Trainer of core has saved, with its kind and the cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.contract import CheckpointError, TensorDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import PathLike

_USUAL_NAMES = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
_RAW = (
    "Load it into the module before the run: "
    "module.load_state_dict(core.checkpoint.load_checkpoint({path!r}){item})"
)


def refusal(saved: Mapping[str, Any], path: PathLike) -> CheckpointError:
    """The error that says what it is, and how it is loaded.

    Args:
        saved: what is in it, or its description.
        path: of it.
    """
    kind, cure = _kind_and_cure(saved, str(path))
    return CheckpointError(f"{path} is not a checkpoint of a Trainer: {kind}. {cure}")


def _kind_and_cure(saved: Mapping[str, Any], path: str) -> tuple[str, str]:
    if _is_weights(saved):
        cure = _RAW.format(path=path, item="")
        return (
            f"it is the state_dict of a module, with {_named(saved)}",
            f"{cure}; with Fabric, fabric.load_raw.",
        )
    if {"state", "param_groups"} <= saved.keys():
        return (
            "it is the state_dict of an optimizer",
            "With Fabric, load it by fabric.load_raw(path, optimizer).",
        )
    has = f"it has {sorted(map(str, saved))[:8]}"
    if name := next((name for name in _USUAL_NAMES if _is_weights(saved.get(name))), None):
        cure = _RAW.format(path=path, item=f"[{name!r}]")
        return (
            f"{has}, of which {name!r} is the state_dict of a module",
            f"{cure}; what Fabric saved, by fabric.load.",
        )
    return has, "Read files of your own with torch.load, and what Fabric saved with fabric.load."


def _is_weights(value: Any) -> bool:
    tensor = torch.Tensor | TensorDescription
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(item, tensor) for item in value.values())
    )


def _named(saved: Mapping[str, Any]) -> str:
    names = ", ".join(repr(name) for name in list(saved)[:3])
    return f"{len(saved)} tensors: {names}{', ...' if len(saved) > 3 else ''}"
