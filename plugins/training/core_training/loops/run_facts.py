"""The hyperparameters and facts of a run, which loggers get once."""

from __future__ import annotations

import contextlib
import datetime
import platform
import shlex
import signal
import sys
import textwrap
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from core.registry import CORE_VERSION
from core_training.hparams.hyperparameters import hparams_of

if TYPE_CHECKING:
    from core_training.run import Run

_DECISION = ("subject", "choice", "reason", "provider")
_MAX_REASON = 400
"""Characters of an error's message that are recorded."""


def log_hyperparameters(run: Run) -> None:
    """Rank 0 hands the `hparams` of the data module and of the module, where there are some, to
    every logger.
    """
    hparams: dict[str, object] = {}
    for owner in (run.datamodule, run.module):
        if getattr(owner, "_logs_hparams", True):  # self.save_hyperparameters(logger=False)
            hparams.update(hparams_of(owner))
    if not hparams or not run.strategy.is_global_zero:
        return
    for logger in run.stage_loggers:
        logger.log_hyperparams(hparams)


def log_facts(run: Run) -> None:
    """Rank 0 hands what was decided, and on what it runs, to the loggers that take it."""
    takers = _takers(run)
    if not takers:
        return
    facts = {
        "began": _text_of(datetime.datetime.now(datetime.UTC)),
        "outcome": "running",  # until the end says otherwise, which a killed run never does
        "reason": "",
        "command": _command(),
        "resumed_from": run.ckpt_path and str(run.ckpt_path),
        "monitored": _monitored(run),
        "machine": platform.platform(),
        "num_processes": run.strategy.world_size,
        "versions": {
            "core": CORE_VERSION,
            "torch": version("torch"),
            "Python": platform.python_version(),
        },
        "decisions": [
            dict(zip(_DECISION, each, strict=True)) for each in run.fabric.resolution.decisions
        ],
    }
    for logger in takers:
        logger.log_run(facts)


def log_end(run: Run, outcome: str, reason: str) -> None:
    """Rank 0 hands the end of training to the loggers that take facts.

    Args:
        run: whose `fit` is over.
        outcome: `"finished"`, `"failed"` or `"interrupted"`.
        reason: a sentence, or empty.
    """
    takers = _takers(run)
    if not takers or not run.trains:
        return
    now, progress = datetime.datetime.now(datetime.UTC), run.progress
    facts = {
        "ended": _text_of(now),
        "duration_s": (now - run.began).total_seconds(),
        "outcome": outcome,
        "reason": reason,
        "epoch": progress.epoch,
        "max_epochs": run.options.max_epochs,
        "step": progress.global_step,
        "training_s": progress.elapsed_s,
        "memory": _memory(run),
        "newest_save": run.newest_save and list(run.newest_save),
    }
    for logger in takers:
        logger.log_run(facts)


def log_error(run: Run, error: BaseException) -> None:
    """Rank 0 hands an end by `error` to the loggers that take facts. No logger's own trouble hides
    it.
    """
    text = textwrap.shorten(str(error), _MAX_REASON, placeholder=" ...")
    reason = f"{type(error).__name__}: {text}".removesuffix(": ")
    if run.signals.signal is not None:
        reason = f"{signal.Signals(run.signals.signal).name} has stopped it."
    with contextlib.suppress(Exception):
        log_end(run, "failed" if isinstance(error, Exception) else "interrupted", reason)


def _takers(run: Run) -> list[Any]:
    if not run.strategy.is_global_zero:
        return []
    return [logger for logger in run.stage_loggers if hasattr(type(logger), "log_run")]


def _text_of(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _command() -> str:
    """The command line as a user could write it; empty in a notebook and at Python's prompt, which
    have none.
    """
    if "ipykernel" in sys.modules or sys.argv[0] in ("", "-c"):
        return ""
    return shlex.join(["python", *sys.argv])


def _monitored(run: Run) -> list[list[str]]:
    """Metrics that callbacks judge by, each with `"min"` or `"max"`."""
    judges: list[tuple[Any, Any]] = [
        (getattr(each, "monitor", None), getattr(each, "mode", None)) for each in run.callbacks
    ]
    named = (judge for judge in judges if isinstance(judge[0], str) and judge[1] in ("min", "max"))
    return [[*judge] for judge in dict.fromkeys(named)]


def _memory(run: Run) -> dict[str, float]:
    """Memory of rank 0's device; empty if the device can't be asked any more."""
    with contextlib.suppress(RuntimeError):
        stats = run.strategy.accelerator.memory_stats(run.strategy.root_device)
        return {name: float(value) for name, value in stats.items()}
    return {}
