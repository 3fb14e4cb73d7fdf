"""The hyperparameters and facts of a run, which loggers get once."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from core.registry import CORE_VERSION
from core.trainer.hparams.hyperparameters import hparams_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.trainer.run import Run


def log_hyperparameters(run: Run) -> None:
    """Rank 0 hands the `hparams` of the data module and of the module, where there are some, to every logger."""
    hparams = {**_hyperparameters_of(run.datamodule), **_hyperparameters_of(run.module)}
    if not hparams or not run.strategy.is_global_zero:
        return
    for logger in run.publisher.loggers:
        logger.log_hyperparams(hparams)


def log_facts(run: Run) -> None:
    """Rank 0 hands what was decided, and on what it runs, to the loggers that take it."""
    takers = [logger for logger in run.publisher.loggers if hasattr(type(logger), "log_run")]
    if not takers or not run.strategy.is_global_zero:
        return
    facts = {
        "began": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC",
        "machine": platform.platform(),
        "num_processes": run.strategy.world_size,
        "versions": {"core": CORE_VERSION, "torch": version("torch"), "Python": platform.python_version()},
        "decisions": [
            {"subject": each.subject, "choice": each.choice, "reason": each.reason, "provider": each.provider}
            for each in run.fabric.resolution.decisions
        ],
    }
    for logger in takers:
        logger.log_run(facts)  # type: ignore[attr-defined]


def _hyperparameters_of(owner: Any) -> Mapping[str, Any]:
    wanted = getattr(owner, "_logs_hparams", True)  # self.save_hyperparameters(logger=False)
    return hparams_of(owner) if wanted else {}
