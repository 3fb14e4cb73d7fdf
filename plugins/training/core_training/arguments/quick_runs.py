"""`fast_dev_run`: a few batches of each stage, with nothing that stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_training.logging.rank_loggers import SilentLogger

if TYPE_CHECKING:
    from core.contract import Logger
    from core_training.hooks.callback import Callback
    from core_training.settings.options import TrainerOptions


def count_batches(fast_dev_run: object) -> int:
    """The number of batches of everything that a quick run takes; 0 if it is none.

    Raises:
        ConfigurationError: not a number of batches.
    """
    if not isinstance(fast_dev_run, int) or fast_dev_run < 0:
        raise ConfigurationError(
            f"fast_dev_run={fast_dev_run!r}: expected True for one batch, a number of batches, or "
            "False."
        )
    return int(fast_dev_run)


def limit_options(options: TrainerOptions, num_batches: int) -> TrainerOptions:
    """The options of a run of so many batches of each stage; as they are if it is no quick run."""
    if not num_batches:
        return options
    return replace(
        options,
        max_epochs=1,
        max_steps=num_batches,
        min_epochs=0,
        min_steps=0,
        max_time=None,
        limit_train_batches=num_batches,
        limit_val_batches=num_batches,
        limit_test_batches=num_batches,
        limit_predict_batches=num_batches,
        overfit_batches=0,
        val_check_interval=None,
        val_check_time=None,
        check_val_every_n_epoch=1,
        num_sanity_val_steps=0,
    )


def without_traces(callbacks: list[Callback], num_batches: int) -> list[Callback]:
    """The callbacks; in a quick run those that neither write, log nor stop."""
    return [callback for callback in callbacks if not (num_batches and callback.leaves_traces)]


def silence(loggers: list[Logger], num_batches: int) -> list[Logger]:
    """The loggers; in a quick run as many that write nothing, so that a module may use its logger
    as it does.
    """
    if not num_batches:
        return loggers
    return [SilentLogger("fast_dev_run", None, None) for _ in loggers]
