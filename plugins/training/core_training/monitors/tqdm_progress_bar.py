"""The progress bar that tqdm draws."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from core_training.callbacks import RichProgressBar
from core_training.monitors.stage_bars import StageBars
from core_training.trainer import Trainer

try:
    from tqdm import tqdm
except ImportError:  # core's bar takes its place
    tqdm = object


_Base: Any = RichProgressBar if tqdm is object else StageBars


class TQDMProgressBar(_Base):  # type: ignore[misc]
    """The bars of tqdm, where it's installed; else that of core. The methods `init_..._tqdm` may be
    overridden.

    Args:
        refresh_rate: batches between two drawings; 0 for none.
        process_position: lines that are left free above.
        leave: keep the bar of each epoch.
    """

    BAR_FORMAT = (
        "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
    )

    def __init__(
        self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False
    ) -> None:
        super().__init__()
        self.refresh_rate = refresh_rate
        self.process_position = process_position
        self.leave = leave
        if refresh_rate == 0:
            self.disable()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__getstate__().items()
            if not isinstance(value, tqdm)
        }

    def make_bar(self, stage: str) -> Any:
        """The bar of one of the methods below."""
        return getattr(self, f"init_{stage}_tqdm")()

    def _bar(self, description: str, *, line: int = 0, **options: Any) -> Any:
        return tqdm(
            desc=description,
            dynamic_ncols=True,
            file=sys.stdout,
            disable=self.is_disabled,
            bar_format=self.BAR_FORMAT,
            position=2 * self.process_position + line,
            **options,
        )

    def init_sanity_tqdm(self) -> Any:
        """The bar of the sanity check."""
        return self._bar(self.sanity_check_description, leave=False)

    def init_train_tqdm(self) -> Any:
        """The bar of training."""
        return self._bar(self.train_description, leave=True, smoothing=0)

    def init_validation_tqdm(self) -> Any:
        """The bar of a validation run, below that of training."""
        is_inner = self.trainer.state.fn != "validate"
        return self._bar(self.validation_description, line=is_inner, leave=not is_inner)

    def init_test_tqdm(self) -> Any:
        """The bar of a test run."""
        return self._bar("Testing", leave=True)

    def init_predict_tqdm(self) -> Any:
        """The bar of a prediction run."""
        return self._bar(self.predict_description, leave=True, smoothing=0)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Begin anew, by a bar of its own if they are left."""
        if self.leave and isinstance(self, StageBars):
            self.on_train_end(trainer, module)
            self.on_train_start(trainer, module)
        super().on_train_epoch_start(trainer, module)
