"""Counts where the time of a run goes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.callbacks import Callback

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer

_PARTS = ("useful", "start", "data", "validation", "saves", "skipped", "lost")
_PREFIX = "goodput"
_ROUND_BEGAN = "CORE_ROUND_BEGAN"
"""The variable in which `core go-on` says when the round began, from the second one on; by the
monotonic clock.
"""


class Goodput(Callback):
    """Measures the share of the time that made progress, and what the rest went to, by rank 0's
    clock.

    | part | time of |
    | --- | --- |
    | `useful` | training batches whose window ended in an update |
    | `skipped` | training batches whose window ended without one |
    | `start` | the process, from its start to the first training batch, or a later `fit` of it to there |
    | `data` | waiting for batches: all that is between the hooks of two of them, and nothing below |
    | `validation` | validation runs |
    | `saves` | checkpoints: from a checkpoint's state being collected to the next hook of the loop |
    | `lost` | from the save that a run has gone on from to the beginning of the process that has gone on |

    Shares of all time, restarts included, are logged every `log_every_n_steps` and when `fit` ends,
    as `goodput/useful` and so on, and then printed in a line.

    Attributes:
        seconds: of each part so far, over all restarts.
    """  # noqa: E501

    def __init__(self, *, verbose: bool = True) -> None:
        """Create the callback.

        Args:
            verbose: print the line when `fit` ends.
        """
        self.verbose = verbose
        self.seconds = dict.fromkeys(_PARTS, 0.0)
        self._part: str | None = None
        self._has_begun = False
        self._window_s = 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The parts of all time so far, which add up to 1."""
        total = sum(self.seconds.values())
        return {part: seconds / total if total else 0.0 for part, seconds in self.seconds.items()}

    def state_dict(self) -> dict[str, Any]:
        """The seconds until now, and the time of day."""
        self._go_on_with(self._part)
        return {"seconds": dict(self.seconds), "saved_at": time.time()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add what was before; what lies between is lost. To a state of this run goes back who does
        its steps again.
        """
        if self._part != "start":
            self._undo(state["seconds"]["useful"])
            return
        for part, seconds in state["seconds"].items():
            self.seconds[part] += seconds - self._seconds_before[part]
        self.seconds["lost"] += max(0.0, self._began_at - state["saved_at"])

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Begin, in the first `fit` with the time since the process began."""
        if stage != "fit":
            return
        age_s = 0.0 if self._has_begun else _age_of_process_s()
        self._part, self._since_s, self._has_begun = "start", time.monotonic() - age_s, True
        self._began_at = time.time() - age_s
        self._seconds_before = dict(self.seconds)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Note where training begins."""
        self._step_seen = trainer.global_step
        self._every = trainer.options.log_every_n_steps

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A save is over."""
        if self._part != "start":
            self._go_on_with("data")

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """The batch is there."""
        self._go_on_with("useful")

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if this step's metrics are logged. The time of a window counts once it is known what
        it was good for.
        """
        before = self._step_seen
        step = trainer.global_step
        self._window_s += self._end_part()
        self._step_seen = step
        self._part = "data"
        running = trainer.running_step
        if step > before:
            self._end_window("useful")
        elif running is not None and running.ends_window and not running.manual:
            self._end_window("skipped" if running.optimizers else "useful")
        if step // self._every > before // self._every:
            self._log(trainer)

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A validation begins; that before training belongs to the start."""
        if self._part not in (None, "start"):
            self._go_on_with("validation")

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """A validation is over."""
        if self._part not in (None, "start"):
            self._go_on_with("data")

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """A save begins."""
        if self._part not in (None, "start"):
            self._go_on_with("saves")

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """A save is over."""
        self._go_on_with("data")

    def on_fit_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Log the whole, and print the line."""
        self._go_on_with(None)
        self._end_window("skipped")
        self._log(trainer)
        if self.verbose:
            trainer.print(str(self))

    def __str__(self) -> str:
        """The line."""
        shares = self.shares
        rest = ", ".join(
            f"{part} {share:.1%}"
            for part, share in shares.items()
            if part != "useful" and share >= 5e-4
        )
        return f"Goodput {shares['useful']:.1%} of {sum(self.seconds.values()):.1f} s" + (
            f"; {rest}." if rest else "."
        )

    def _undo(self, useful_s: float) -> None:
        """Count as lost the time that was useful after a state."""
        undone_s = self.seconds["useful"] - useful_s + self._window_s + self._end_part()
        self.seconds |= {"useful": useful_s, "lost": self.seconds["lost"] + undone_s}
        self._part = "data"
        self._window_s = 0.0

    def _log(self, trainer: Trainer) -> None:
        shares = {f"{_PREFIX}/{part}": share for part, share in self.shares.items()}
        trainer.log_metrics(shares, trainer.global_step)

    def _end_part(self) -> float:
        now_s = time.monotonic()
        passed_s = now_s - self._since_s
        self._since_s = now_s
        return passed_s

    def _go_on_with(self, part: str | None) -> None:
        """The running part ends, and another begins; None: none."""
        if self._part is not None:
            self.seconds[self._part] += self._end_part()
        self._part = part

    def _end_window(self, part: str) -> None:
        self.seconds[part] += self._window_s
        self._window_s = 0.0


def _age_of_process_s() -> float:
    """Seconds since this process began, from the kernel's table, whose clock counts from the boot;
    0 without one.

    A process that `core go-on` has kept begins again with each round.
    """
    if began := os.environ.get(_ROUND_BEGAN):
        return time.monotonic() - float(began)
    if not os.path.exists("/proc/self/stat"):
        return 0.0
    fields = (
        Path("/proc/self/stat")
        .read_text(encoding="ascii", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
