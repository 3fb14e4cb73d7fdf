"""The base of what shows how far a run has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_training.hooks.callback import Callback

if TYPE_CHECKING:
    from torch import nn

    from core_training.views.trainer_views import TrainerViews


class ProgressBar(Callback):
    """Shows how far a run has come. Meant to be subclassed: a trainer that is given one makes no
    other.

    Totals are in `trainer.loaders`, positions in `trainer.progress`. All ranks call the hooks;
    `disable` is called on those that have nothing to show.

    Attributes:
        trainer: the one that runs, from `setup` on.
        is_enabled: whether anything is shown.
    """

    runs_last = True  # metrics of training epochs are complete only then
    found_as = "progress_bar_callback"

    trainer: TrainerViews
    is_enabled: bool = True

    @property
    def is_disabled(self) -> bool:
        """True if nothing is shown."""
        return not self.is_enabled

    def disable(self) -> None:
        """Show nothing from the next stage on. Called on all ranks but rank 0, before `setup`."""
        self.is_enabled = False

    def enable(self) -> None:
        """Show again from the next stage on."""
        self.is_enabled = True

    @property
    def total_train_batches(self) -> int | float:
        """Batches of one epoch of training; infinite if unknown."""
        total: int | float = self.trainer.loaders.num_train_batches
        return total

    def _count_evaluated(self, trainer: TrainerViews) -> list[int | float]:
        """Batches of each loader of the validation, sanity check, test or prediction that runs;
        infinite if unknown.
        """
        loaders = trainer.loaders.validation
        if trainer.stage in ("test", "predict"):
            loaders = getattr(trainer.loaders, trainer.stage)
        limit = trainer.options.num_sanity_val_steps
        if not trainer.sanity_checking or limit < 0:
            return [loader.num_batches for loader in loaders]
        return [min(loader.num_batches, limit) for loader in loaders]

    def get_metrics(self, trainer: TrainerViews, module: nn.Module) -> dict[str, Any]:
        """The values logged with `prog_bar=True`, those of training first; override it to show
        other numbers or texts.

        Reading them waits for the device, so they are asked for only when something is drawn.
        """
        shown = trainer.progress_bar_metrics
        training = trainer.logged.train.names()
        own = {name: value for name, value in shown.items() if name in training}
        return {**own, **shown}

    def print(self, *values: Any, **options: Any) -> None:
        """Print, if anything is shown. Takes what Python's own takes."""
        if self.is_enabled:
            print(*values, **options)  # noqa: T201  # asked for by name

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "trainer"}
