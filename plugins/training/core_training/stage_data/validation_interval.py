"""The number of batches from one validation to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core_training.settings.options import is_whole, resolve_limit

if TYPE_CHECKING:
    from core_training.settings.options import TrainerOptions


def batches_between(options: TrainerOptions, loaders: Any) -> int:
    """Batches from one validation to the next; 0 if batches don't decide it.

    Raises:
        ConfigurationError: a fraction of an epoch of unknown length, or of less than one batch.
    """
    interval = options.val_check_interval
    if not loaders.validation or is_whole(interval):
        return 0
    if isinstance(interval, int):
        return interval
    return int(resolve_limit(interval, loaders.num_train_batches, name="val_check_interval"))


def check_interval(options: TrainerOptions, loaders: Any) -> None:
    """Refuse an interval that no epoch reaches.

    Raises:
        ConfigurationError: with the ways out.
    """
    interval, available = batches_between(options, loaders), loaders.num_train_batches
    if options.check_val_every_n_epoch is not None and interval > available:
        raise ConfigurationError(
            f"val_check_interval={interval} is more than the {available} batches of an epoch, so "
            "validation would never run. Pass check_val_every_n_epoch=None to count batches over "
            "epochs, or limit_val_batches=0 not to validate."
        )
