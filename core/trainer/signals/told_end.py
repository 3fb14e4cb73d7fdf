"""The last words of a run that a signal has ended: how far it came, and how to go on."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer


def tell_end(trainer: Trainer) -> None:
    """Rank 0. Write a line about a `fit` that a signal has ended; else nothing."""
    number = trainer.signals.signal
    if number is None or trainer.stage != "fit" or not trainer.is_global_zero:
        return
    has_saved = any(each.last_model_path or each.best_model_path for each in trainer.checkpoint_callbacks)
    after = 'ckpt_path="last" goes on from the newest checkpoint' if has_saved else "nothing of it is saved"
    sys.stderr.write(f"{signal.Signals(number).name} has stopped training after step {trainer.global_step}; {after}.\n")
    sys.stderr.flush()
