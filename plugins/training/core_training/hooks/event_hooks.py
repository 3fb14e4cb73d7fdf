"""The pluggy hook specs of a run's events.

They carry the names and arguments of `core.Callback`'s methods. A module that implements some of
them is named in the entry-point group `core.hooks`, and is loaded only when a user asks for it by
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

T = TypeVar("T")

hookspec = pluggy.HookspecMarker("core")


class EventHooks(Generic[T]):
    """The events of a run, in the order in which they first happen. Called on all ranks.

    `trainer` is the running `core.Trainer`, `module` the user's own module (never a wrapper).
    Return values are ignored. A hook without an implementation is never called.
    """

    @hookspec
    def setup(self, trainer: T, module: nn.Module, stage: str) -> None:
        """The stage (`fit`, `validate`, `test`, `predict`) is about to begin; the process group
        exists.
        """

    @hookspec
    def on_fit_start(self, trainer: T, module: nn.Module) -> None:
        """Module and optimizers are set up; nothing is restored yet."""

    @hookspec
    def on_sanity_check_start(self, trainer: T, module: nn.Module) -> None:
        """A few validation batches are about to run, to find mistakes early."""

    @hookspec
    def on_sanity_check_end(self, trainer: T, module: nn.Module) -> None:
        """The sanity check is over."""

    @hookspec
    def on_train_start(self, trainer: T, module: nn.Module) -> None:
        """Everything is restored; the first epoch comes next."""

    @hookspec
    def on_train_epoch_start(self, trainer: T, module: nn.Module) -> None:
        """An epoch begins."""

    @hookspec
    def on_train_batch_start(
        self, trainer: T, module: nn.Module, batch: Any, batch_idx: int
    ) -> int | None:
        """The batch is on the device; `training_step` comes next. -1 leaves out the rest of the
        epoch; see `Module`.
        """

    @hookspec
    def on_before_backward(self, trainer: T, module: nn.Module, loss: Tensor) -> None:
        """`loss`: a scalar, already divided by the accumulation window."""

    @hookspec
    def on_after_backward(self, trainer: T, module: nn.Module) -> None:
        """Gradients are there; still scaled where the precision scales the loss."""

    @hookspec
    def on_before_optimizer_step(self, trainer: T, module: nn.Module, optimizer: Optimizer) -> None:
        """Gradients are complete and unscaled, not yet clipped."""

    @hookspec
    def on_before_zero_grad(self, trainer: T, module: nn.Module, optimizer: Optimizer) -> None:
        """The optimizer has stepped; gradients are about to be cleared."""

    @hookspec
    def on_train_batch_end(
        self, trainer: T, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """`outputs`: what `training_step` returned."""

    @hookspec
    def on_train_epoch_end(self, trainer: T, module: nn.Module) -> None:
        """An epoch is over, its validation included."""

    @hookspec
    def on_train_end(self, trainer: T, module: nn.Module) -> None:
        """Training is over, normally or by a stop."""

    @hookspec
    def on_fit_end(self, trainer: T, module: nn.Module) -> None:
        """The last event of `fit`, before teardown."""

    @hookspec
    def on_validation_start(self, trainer: T, module: nn.Module) -> None:
        """A validation run begins."""

    @hookspec
    def on_validation_epoch_start(self, trainer: T, module: nn.Module) -> None:
        """The one epoch of a validation, test or prediction run begins."""

    @hookspec
    def on_validation_batch_start(
        self, trainer: T, module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """The batch is on the device; `validation_step`, or that of the run, comes next."""

    @hookspec
    def on_validation_batch_end(
        self,
        trainer: T,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """`outputs`: what `validation_step`, or that of the run, returned."""

    @hookspec
    def on_validation_epoch_end(self, trainer: T, module: nn.Module) -> None:
        """All batches were seen; what they logged can be read in `trainer.callback_metrics`."""

    @hookspec
    def on_validation_end(self, trainer: T, module: nn.Module) -> None:
        """Metrics can be read in `trainer.callback_metrics`, those of `on_validation_epoch_end`
        too.
        """

    @hookspec
    def on_test_start(self, trainer: T, module: nn.Module) -> None:
        """A test run begins."""

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    @hookspec
    def on_test_end(self, trainer: T, module: nn.Module) -> None:
        """Metrics are reduced."""

    @hookspec
    def on_predict_start(self, trainer: T, module: nn.Module) -> None:
        """A prediction run begins."""

    on_predict_epoch_start = on_validation_epoch_start
    on_predict_batch_start = on_validation_batch_start
    on_predict_batch_end = on_validation_batch_end

    @hookspec
    def on_predict_epoch_end(self, trainer: T, module: nn.Module) -> None:
        """All batches were seen."""

    @hookspec
    def on_predict_end(self, trainer: T, module: nn.Module) -> None:
        """The last event of a prediction run."""

    @hookspec
    def on_save_checkpoint(self, trainer: T, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """`checkpoint`: the state about to be written; may be added to. Plain types, tensors and
        arrays only.
        """

    @hookspec
    def on_load_checkpoint(self, trainer: T, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """`checkpoint`: the state that was read; nothing of it is restored yet."""

    @hookspec
    def on_exception(self, trainer: T, module: nn.Module, exception: BaseException) -> None:
        """The run is ending by `exception`, which is raised unchanged afterwards."""

    @hookspec
    def teardown(self, trainer: T, module: nn.Module, stage: str) -> None:
        """The stage is over, also after an exception; the process group still exists."""
