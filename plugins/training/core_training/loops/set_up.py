"""The parts of a stage's set-up that a strategy asks the Trainer for; see
`core.contract.SetupHost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from core.contract import Capability, MakesOptimizers
from core.session import refuse_half_loaded
from core.watch import phase
from core_training.checks.untrained import warn_of_untrained
from core_training.hooks.events import override_of
from core_training.module.module import require_method
from core_training.module.optimization import check_optimizers, check_schedulers, parse_optimizers
from core_training.state.program_settings import settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from core_training.run import Run


def configure_model(run: Run) -> None:
    """All ranks. Call `configure_model`, which builds large layers."""
    hook = override_of(run.module, "configure_model")
    if hook is not None:
        hook()
    if run.options.sync_batchnorm and Capability.COLLECTIVES in run.strategy.capabilities:
        run.module = nn.SyncBatchNorm.convert_sync_batchnorm(run.module)
    run.fabric.draw_apart()  # a strategy may share states among some ranks as it sets the module up


def configure_optimizers(run: Run) -> tuple[list[Optimizer], list[Any]]:
    """All ranks. The module's optimizers and schedulers, in one form."""
    strategy = run.strategy
    if isinstance(strategy, MakesOptimizers):
        made = strategy.configure_optimizers(run.module)
    else:
        made = require_method(run.module, "configure_optimizers", "fit")()
    optimizers, schedulers = parse_optimizers(made)
    check_optimizers(run, optimizers)
    check_schedulers(run.module, strategy, schedulers)
    if optimizers and strategy.is_global_zero and not isinstance(strategy, MakesOptimizers):
        warn_of_untrained(run.module, optimizers)
    return optimizers, schedulers


def restore(run: Run, *, begins: bool = True) -> None:
    """All ranks. Load the checkpoint that the user named, if any; or the state to which a `fit`
    that runs goes back.
    """
    if run.trains and begins:
        run.settings = settings_of(run)
        for callback in run.callbacks:
            if callback.has_served and not run.counts_on:
                callback.reset_for_fit()
        run.events.emit("on_fit_start")
        run.progress.restart_epoch()
    if run.ckpt_path is not None:
        from core_training.state import snapshot  # who resumes nothing waits for none of it

        with phase("checkpoint"):
            snapshot.load(run, run.ckpt_path)
    refuse_half_loaded(run.session, "trained" if run.trains else "evaluated")
