"""The counters of a run, as Lightning's loops keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BATCH = ("ready", "started", "processed", "completed")
_STEP = ("ready", "completed")


def loops_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The entry `loops` of a checkpoint.

    Args:
        progress: epochs that are done (`epoch`), batches of the one that runs (`batch`), optimizer steps
            (`global_step`), batches of all epochs (`total_batches`), and whether an epoch's last hooks were running
            (`epoch_is_over`); nothing in a checkpoint of weights alone.
    """
    epoch, batch, steps, total = (progress.get(key, 0) for key in ("epoch", "batch", "global_step", "total_batches"))
    within = batch > 0
    # After the last batch of an epoch, Lightning keeps that epoch's count until the next one begins.
    current = batch if within else total // epoch if epoch else 0
    begun = epoch + within
    # Lightning counts an epoch as completed when its last hooks are through.
    completed = epoch - progress.get("epoch_is_over", False)
    epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": completed}
    evaluated = {**_counts(_BATCH), "is_last_batch": False}
    optimizer = {"step": _counts(_STEP, steps), "zero_grad": _counts(("ready", "started", "completed"), steps)}
    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_loop.state_dict": {"_batches_that_stepped": steps},
            "epoch_loop.batch_progress": {**_counts(_BATCH, total, current), "is_last_batch": not within and epoch > 0},
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
