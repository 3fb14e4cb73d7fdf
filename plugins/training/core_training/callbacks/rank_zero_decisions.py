"""Decisions that the ranks take together: each may see other metrics and other clocks, so rank 0's
count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError, did_you_mean
from core_training.settings.options import is_whole

if TYPE_CHECKING:
    from collections.abc import Collection

    from core_training.logging.metric_values import Origin
    from core_training.views.trainer_views import TrainerViews


def agree_on_metrics(trainer: TrainerViews) -> dict[str, float]:
    """All ranks. The values logged so far, as rank 0 sees them."""
    values = None
    if trainer.is_global_zero:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return dict(trainer.strategy.broadcast(values))


def origin_of(trainer: TrainerViews, name: str) -> Origin | None:
    """All ranks. The event that renews this metric, as rank 0 sees it."""
    origin: Origin | None = trainer.strategy.broadcast(trainer.run.origin_of(name))
    return origin


def not_logged(who: str, name: str, logged: Collection[str]) -> ConfigurationError:
    """The error for a metric that was not logged."""
    names = ", ".join(map(repr, sorted(logged))) or "nothing"
    return ConfigurationError(
        f"{who} monitors {name!r}, which was not logged; logged was "
        f"{names}.{did_you_mean(name, logged)} Call self.log({name!r}, ...) in a step of the "
        "module, or monitor one of those."
    )


def judges_after_epochs(trainer: TrainerViews, wanted: bool | None) -> bool:
    """True at the end of epochs rather than of validation runs. If the user doesn't say it: unless
    validation has another rhythm than once at the end of every epoch.
    """
    if wanted is not None:
        return wanted
    options = trainer.options
    by_epoch = is_whole(options.val_check_interval) and options.val_check_time is None
    regular = by_epoch and options.check_val_every_n_epoch == 1
    return regular or not trainer.loaders.validation
