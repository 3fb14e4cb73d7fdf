"""Checkpoints in one file, in the form that Lightning's programs read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core import CheckpointIO, PathLike
from core.checkpoint import TorchCheckpointIO
from core.registry import CHECKPOINT_IO_REGISTRY
from core_lightning.names.modules import VERSION

_BATCH = ("ready", "started", "processed", "completed")
_STEP = ("ready", "completed")
_OWN_KEYS = ("model", "optimizers", "lr_schedulers", "hyper_parameters")
"""Sections of core's state that stand under Lightning's keys, and not a second time in the section
`core`.
"""


class LightningCheckpointIO(TorchCheckpointIO):
    """One file under Lightning's keys: `torch.load(path, weights_only=True)["state_dict"]` are the
    weights.

    `optimizer_states`, `lr_schedulers`, `hyper_parameters`, `epoch`, `global_step`, `loops` and
    `pytorch-lightning_version` are there too, and what `on_save_checkpoint` of the module has
    added, so that Lightning goes on from it. What only core knows, such as the position in the
    data, is in the section `core`: a run of core goes on exactly. A state of Fabric's is written as
    it is. The digest ends the file: programs that list the folder find no other one.
    """

    digest_within = True

    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the whole state and its digest.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
        """
        if "format" in state and "model" in state:
            state = to_lightning(state)
        super().write_file(state, path)


def has_checkpoint_io(plugins: Iterable[Any]) -> bool:
    """True if plugins, objects or names, choose a form of checkpoints."""
    for plugin in plugins:
        if isinstance(plugin, CheckpointIO):
            return True
        if isinstance(plugin, str) and plugin in CHECKPOINT_IO_REGISTRY:
            return True
    return False


def to_lightning(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a Trainer of core under Lightning's keys."""
    progress: Mapping[str, Any] = state.get("progress", {})
    named = list(state.get("optimizers", ()))
    names = [_names_of(each) for each in named]
    saved: dict[str, Any] = {
        "epoch": progress.get("epoch", 0) - progress.get("epoch_is_over", False),
        "global_step": progress.get("global_step", 0),
        "pytorch-lightning_version": VERSION,
        "state_dict": state["model"],
        "loops": _loops_of(progress),
        "core": {
            **{key: value for key, value in state.items() if key not in _OWN_KEYS},
            "optimizer_names": names,
        },
    }
    if "hyper_parameters" in state:
        saved["hparams_name"] = state.get("hyper_parameters_argument", "kwargs")
        saved["hyper_parameters"] = state["hyper_parameters"]
    if "optimizers" in state:
        saved["callbacks"] = {}
        saved["optimizer_states"] = [
            _by_position(each, own) for each, own in zip(named, names, strict=True)
        ]
        saved["lr_schedulers"] = list(state.get("lr_schedulers", ()))
        scaler = state.get("precision")
        if scaler:
            saved["MixedPrecision"] = scaler
    section = state.get("module_section", {})
    if "hyper_parameters" in section:
        saved["hyper_parameters"] = {
            **saved.get("hyper_parameters", {}),
            **section["hyper_parameters"],
        }
    if "state_dict" in section:  # the module's hook has put another one there
        saved["state_dict"] = section["state_dict"]
    return {**section, **saved}


def _loops_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The entry `loops` of a checkpoint.

    Args:
        progress: epochs that are done (`epoch`), batches of the one that runs (`batch`), optimizer
            steps (`global_step`), batches of all epochs (`total_batches`), and whether an epoch's
            last hooks were running (`epoch_is_over`); nothing in a checkpoint of weights alone.
    """
    epoch, batch, steps, total = (
        progress.get(key, 0) for key in ("epoch", "batch", "global_step", "total_batches")
    )
    within = batch > 0
    # After the last batch of an epoch, Lightning keeps that epoch's count until the next one
    # begins.
    if within:
        current = batch
    elif epoch:
        current = total // epoch
    else:
        current = 0
    begun = epoch + within
    # Lightning counts an epoch as completed when its last hooks are through.
    completed = epoch - progress.get("epoch_is_over", False)
    epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": completed}
    evaluated = {**_counts(_BATCH), "is_last_batch": False}
    optimizer = {
        "step": _counts(_STEP, steps),
        "zero_grad": _counts(("ready", "started", "completed"), steps),
    }
    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_loop.state_dict": {"_batches_that_stepped": steps},
            "epoch_loop.batch_progress": {
                **_counts(_BATCH, total, current),
                "is_last_batch": not within and epoch > 0,
            },
            "epoch_loop.scheduler_progress": _counts(_STEP),
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": {"optimizer": optimizer},
            "epoch_loop.manual_optimization.state_dict": {},
            "epoch_loop.manual_optimization.optim_step_progress": _counts(_STEP),
            "epoch_loop.val_loop.state_dict": {},
            "epoch_loop.val_loop.batch_progress": evaluated,
            "epoch_progress": {"total": dict(epochs), "current": epochs},
        },
        "validate_loop": {"state_dict": {}, "batch_progress": evaluated},
        "test_loop": {"state_dict": {}, "batch_progress": evaluated},
        "predict_loop": {"state_dict": {}, "batch_progress": _counts(_BATCH)},
    }


def _counts(names: tuple[str, ...], total: int = 0, current: int = 0) -> dict[str, dict[str, int]]:
    return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, current)}


def _names_of(optimizer: Mapping[str, Any]) -> list[str] | None:
    """Parameters, group after group; None for a state of another form, as an engine may have it."""
    if "param_groups" not in optimizer or "state" not in optimizer:
        return None
    return [name for group in optimizer["param_groups"] for name in group["params"]]


def _by_position(optimizer: Mapping[str, Any], names: list[str] | None) -> Any:
    """The state as torch itself has it, with numbers in the place of names."""
    if names is None:
        return optimizer
    return renamed(optimizer, {name: index for index, name in enumerate(names)})


def renamed(optimizer: Mapping[str, Any], key: Any) -> dict[str, Any]:
    """The state of an optimizer, whose parameters have other keys: `key[name]` is that of
    `name`.
    """
    groups = [
        {**group, "params": [key[name] for name in group["params"]]}
        for group in optimizer["param_groups"]
    ]
    state = {key[name]: entry for name, entry in optimizer["state"].items()}
    return {**optimizer, "state": state, "param_groups": groups}
