"""Checkpoints of runs that have ended: at their limit a run is over, and past it a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import PathLike
    from core_training.run import Run


def check_limits(run: Run, saved: Mapping[str, Any], path: PathLike) -> None:
    """Refuse a checkpoint that lies past a limit of this run, before anything is restored.

    Args:
        run: that is to go on.
        saved: what is in the checkpoint, or its description.
        path: of it.

    Raises:
        CheckpointError: with the limit, the checkpoint's place, and the ways out.
    """
    progress = saved["progress"]
    options = run.options
    place = progress["epoch"], progress["batch"]
    # The last batch may have made several steps, so that a run ends a little past its own limit.
    is_own = options.max_steps == saved.get("max_steps")
    if options.max_epochs is not None and place > (options.max_epochs, 0) >= (0, 0):
        passed = f"max_epochs={options.max_epochs}"
    elif 0 <= options.max_steps < progress["global_step"] and not is_own:
        passed = f"max_steps={options.max_steps}"
    else:
        return
    cure = (
        f"Raise {passed.partition('=')[0]} to train on, pass an earlier checkpoint, or call "
        "validate or test"
    )
    if run.fast_dev_run:
        cure = "fast_dev_run tries a run from its beginning: leave ckpt_path out"
    raise CheckpointError(
        f"{path} was saved in epoch {progress['epoch']} (from 0), after {progress['batch']} of its "
        f"batches and {progress['global_step']} optimizer steps, which is past {passed}: there is "
        f"nothing to train. {cure}."
    )


def print_if_ended(run: Run) -> bool:
    """All ranks, once the checkpoint is restored. True, and a line on rank 0, if the run has ended
    where it was saved.

    A scheduler may start a finished run again: that is no mistake.
    """
    limit = limit_reached(run)
    if run.ckpt_path is None or not limit:
        return False
    progress = run.progress
    run.fabric.print(
        f"fit trains nothing: {run.ckpt_path} is the end of a run of {progress.epoch} epochs and "
        f"{progress.global_step} optimizer steps, by {limit}. Weights and callback_metrics are the "
        "checkpoint's."
    )
    return True


def limit_reached(run: Run) -> str:
    """The limit that ends the run before its first batch, as it is written; empty for none."""
    options = run.options
    progress = run.progress
    if options.max_epochs is not None and 0 <= options.max_epochs <= progress.epoch:
        return f"max_epochs={options.max_epochs}"
    if 0 <= options.max_steps <= progress.global_step:
        return f"max_steps={options.max_steps}"
    if options.max_time is not None and progress.elapsed_s >= options.max_time.total_seconds():
        return f"max_time={str(options.max_time)!r}"
    return ""
