"""Checkpoints under Lightning's keys, in the form that a Trainer of core saves.

Lightning has written them, or `LightningCheckpointIO`: those have a section `core` besides, with
what Lightning's keys don't say, so that a run goes on exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

from core import CheckpointReader, __version__
from core_lightning.checkpoints import foreign_objects
from core_lightning.checkpoints.checkpoint_io import renamed

_MARK = "pytorch-lightning_version"
_OWN = "core"
_UNREAD = {
    "callbacks",
    "native_amp_scaling_state",
    "hparams_type",
    "datamodule_hparams_name",
    "datamodule_hyper_parameters",
    "datamodule_hparams_type",
}


class LightningCheckpointReader(CheckpointReader):
    """Reads Lightning's files: weights, hyperparameters, optimizers, schedulers and counters.

    Callbacks and the position of loaders stay unread. A run goes on with the epoch that had begun:
    Lightning's order of the data within it isn't known. Optimizers are saved by the positions of
    their parameters, so they must be built over the same ones in the same order.
    """

    program = "PyTorch Lightning"

    def recognizes(self, head: bytes) -> bool:
        """True if Lightning's version stands among the first keys, and weights do."""
        return _MARK.encode() in head and b"state_dict" in head

    def read(self, file: BinaryIO, path: str) -> dict[str, Any] | None:
        """The content of a file, without objects of other classes, which a warning names."""
        return foreign_objects.read(file, path, _UNREAD)

    def translate(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a run."""
        return _translate(saved)

    def recognizes_folder(self, path: str, names: Collection[str]) -> str | None:
        """The command, if the folder is a sharded checkpoint of FSDP or of a model in parallel."""
        if not {"meta.pt", ".metadata"} <= set(names):
            return None
        return (
            f"`python -m lightning.pytorch.utilities.consolidate_checkpoint {path!r}` makes one "
            "file of it, which can be loaded. Where Lightning isn't installed, torch makes one of "
            "the weights: `python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
            f"{path!r} {f'{path}.pt'!r}`."
        )


def _translate(saved: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(own := saved.get(_OWN), dict) and "format" in own:
        return _translate_own(saved, own)
    state: dict[str, Any] = {
        "format": {"version": 1, "core": __version__, "world_size": 1, "lightning": saved[_MARK]},
        "model": saved["state_dict"],
        "module_section": {key: value for key, value in saved.items() if key not in _KNOWN},
    }
    if isinstance(hparams := saved.get("hyper_parameters"), dict):
        state["hyper_parameters"] = dict(hparams)
        # "kwargs" is Lightning's word for hyperparameters that were separate arguments.
        if saved.get("hparams_name") not in (None, "kwargs"):
            state["hyper_parameters_argument"] = saved["hparams_name"]
    if "optimizer_states" not in saved:
        return state
    return {
        **state,
        "optimizers": list(saved["optimizer_states"]),
        "lr_schedulers": list(saved.get("lr_schedulers", [])),
        "precision": saved.get("MixedPrecision") or {},
        "progress": _progress(saved),
    }


def _translate_own(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a Trainer of core, which has put the larger sections under Lightning's keys."""
    state = {key: value for key, value in own.items() if key != "optimizer_names"}
    state["model"] = saved["state_dict"]
    if "hyper_parameters" in saved:
        state["hyper_parameters"] = dict(saved["hyper_parameters"])
    if "optimizer_states" in saved:
        pairs = zip(saved["optimizer_states"], own["optimizer_names"], strict=True)
        state["optimizers"] = [
            optimizer if names is None else renamed(optimizer, names) for optimizer, names in pairs
        ]
        state["lr_schedulers"] = list(saved.get("lr_schedulers", []))
    return state


_KNOWN = {
    _MARK,
    "state_dict",
    "optimizer_states",
    "lr_schedulers",
    "loops",
    "epoch",
    "global_step",
    "hparams_name",
    "hyper_parameters",
    "MixedPrecision",
    *_UNREAD,
}


def _progress(saved: Mapping[str, Any]) -> dict[str, Any]:
    batches = _look_up(saved, "loops", "fit_loop", "epoch_loop.batch_progress")
    epochs = _look_up(saved, "loops", "fit_loop", "epoch_progress", "current")
    # Lightning saves within the hooks at an epoch's end, before it counts the epoch as completed:
    # after its last batch it is over nevertheless. Within an epoch, that one begins again, and its
    # batches aren't counted.
    complete = batches.get("is_last_batch", False)
    done = epochs.get("processed" if complete else "completed", saved.get("epoch", 0))
    current = 0 if complete else batches.get("current", {}).get("ready", 0)
    return {
        "epoch": done,
        "batch": 0,
        "is_validated": False,
        "global_step": saved.get("global_step", 0),
        "total_batches": batches.get("total", {}).get("ready", 0) - current,
        "elapsed_s": 0.0,
    }


def _look_up(data: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
