"""The last words of a run that a signal has ended: how far it came, and how to go on."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.trainer.run import Run


def tell_end(run: Run) -> None:
    """Rank 0. Write a line about a `fit` that a signal has ended; else nothing."""
    number = run.signals.signal
    if number is None or run.stage != "fit" or not run.strategy.is_global_zero:
        return
    has_saved = any(each.last_model_path or each.best_model_path for each in run.trainer.checkpoint_callbacks)
    after = 'ckpt_path="last" goes on from the newest checkpoint' if has_saved else "nothing of it is saved"
    sys.stderr.write(
        f"{signal.Signals(number).name} has stopped training after step {run.progress.global_step}; {after}.\n"
    )
    sys.stderr.flush()
