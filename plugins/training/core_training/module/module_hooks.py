"""The hooks of a module, in the order in which they first happen. Each does nothing, and then it is
never called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import empty_hook

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class ModuleHooks:
    """Events of a run. All ranks call every hook; those of callbacks come before the module's.

    `core.Callback` has the same hooks, with `trainer, module` before the arguments. Arguments at
    the end may be left out of a signature. The order of one whole run is in `docs/hooks.md`.
    """

    # fit ------------------------------------------------------------------------------------------

    @empty_hook
    def configure_callbacks(self) -> Any:
        """Main process, before the stage begins.

        Returns:
            A callback, or a list of them. Each replaces the Trainer's callbacks of the same type.
        """

    @empty_hook
    def on_fit_start(self) -> None:
        """Module and optimizers are set up; nothing is restored yet."""

    @empty_hook
    def on_sanity_check_start(self) -> None:
        """A few validation batches are about to run, to find mistakes early."""

    @empty_hook
    def on_sanity_check_end(self) -> None:
        """The sanity check is over."""

    @empty_hook
    def on_train_start(self) -> None:
        """Everything is restored; the first epoch comes next."""

    @empty_hook
    def on_train_epoch_start(self) -> None:
        """An epoch begins."""

    @empty_hook
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """The batch is on the device; `training_step` comes next.

        Return -1, on all ranks, to leave out this batch and the rest of the epoch, with the batches
        of an accumulation window that isn't complete: their gradients are dropped. The hooks of the
        epoch's end follow.
        """

    @empty_hook
    def on_before_backward(self, loss: Tensor) -> None:
        """`loss`: a scalar with a graph, already divided by the accumulation window."""

    @empty_hook
    def on_after_backward(self) -> None:
        """Gradients are there; still scaled where the precision scales the loss."""

    @empty_hook
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Gradients are complete and unscaled, not yet clipped: the place to look at their
        norms.
        """

    @empty_hook
    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """After the optimizer's step: gradients are about to be cleared."""

    @empty_hook
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """`outputs`: what `training_step` returned, its loss detached. Gradients are cleared
        already.
        """

    @empty_hook
    def on_train_epoch_end(self) -> None:
        """All batches were seen, and validation has run. What they logged can be read; what is
        logged here joins it.
        """

    @empty_hook
    def on_train_end(self) -> None:
        """Training is over, normally or by a stop. Nothing can be logged any more."""

    @empty_hook
    def on_fit_end(self) -> None:
        """The last event of `fit`, before teardown."""

    @empty_hook
    def on_exception(self, exception: BaseException) -> None:
        """The run is ending by `exception`, which is raised unchanged afterwards."""

    @empty_hook
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add to a checkpoint what else your module needs: plain types, tensors and arrays, an
        object's `state_dict()`.

        Args:
            checkpoint: the module's own section, empty at first; weights, optimizers and the like
                are saved anyway.
        """

    @empty_hook
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added. The weights are loaded afterwards."""

    # evaluation -----------------------------------------------------------------------------------

    @empty_hook
    def on_validation_start(self) -> None:
        """A validation, test or prediction run begins; the module is in evaluation mode, without
        gradients.
        """

    @empty_hook
    def on_validation_epoch_start(self) -> None:
        """The one epoch of a validation, test or prediction run begins."""

    @empty_hook
    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The batch is on the device; `validation_step`, or that of the run, comes next."""

    @empty_hook
    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """`outputs`: what `validation_step`, or that of the run, returned."""

    @empty_hook
    def on_validation_epoch_end(self) -> None:
        """All batches were seen; what they logged can be read, and what is logged here counts for
        the run.
        """

    @empty_hook
    def on_validation_end(self) -> None:
        """Metrics can be read in `trainer.callback_metrics`, those of the epoch's end too."""

    on_test_start = on_validation_start
    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    on_test_end = on_validation_end

    on_predict_start = on_validation_start
    on_predict_epoch_start = on_validation_epoch_start
    on_predict_batch_start = on_validation_batch_start
    on_predict_batch_end = on_validation_batch_end

    @empty_hook
    def on_predict_epoch_end(self) -> None:
        """All batches were seen."""

    @empty_hook
    def on_predict_end(self) -> None:
        """The last event of a prediction run."""
