"""The message after a fit that a signal has ended: how far it came, and how to resume."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.trainer.run import Run


def write_interruption_message(run: Run) -> None:
    """Write a line on rank 0 if a signal has ended `fit`."""
    number = run.signals.signal
    if number is None or run.stage != "fit" or not run.strategy.is_global_zero:
        return
    has_saved = any(each.last_model_path or each.best_model_path for each in run.trainer.checkpoint_callbacks)
    after = 'ckpt_path="last" goes on from the newest checkpoint' if has_saved else "nothing of it is saved"
    sys.stderr.write(
        f"{signal.Signals(number).name} has stopped training after step {run.progress.global_step}; {after}.\n"
    )
    sys.stderr.flush()
