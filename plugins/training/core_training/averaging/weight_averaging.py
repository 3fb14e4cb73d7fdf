"""An average of the weights that training passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint import await_copies
from core.contract import Capability, CheckpointError, ConfigurationError
from core_training.averaging.local_weights import find_local_weights, own_part
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import refuse_capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim.swa_utils import AveragedModel

    from core_training.trainer import Trainer


class WeightAveraging(Callback):
    """The base of `EMA` and `StochasticWeightAveraging`. Meant to be subclassed: a subclass calls
    `update`.

    The average is torch's `AveragedModel`; of weights in shards each rank keeps that of its own
    part, in the number format in which the optimizer steps them. It is saved in its own section of
    the checkpoint, beside the weights with which training goes on:
    `callbacks/<state_key>/section/average`, by parameter name. When fit ends, after the last
    checkpoint, the module gets the average; what is saved after that has the trained weights in
    `section/trained`. Evaluating a checkpoint with this callback in the trainer uses the average
    too.
    """

    def __init__(
        self,
        average_fn: Callable[..., None] | None,
        *,
        use_buffers: bool = False,
        device: torch.device | str | None = None,
        evaluates_in_fit: bool = False,
        evaluates: bool = True,
    ) -> None:
        """Create the callback.

        Args:
            average_fn: torch's `multi_avg_fn`, such as `get_ema_multi_avg_fn(0.999)`; None weighs
                all equally.
            use_buffers: average buffers too; else they are the model's newest.
            device: where the average is kept; None is the model's.
            evaluates_in_fit: validation runs of fit use the average.
            evaluates: `validate`, `test` and `predict` with a checkpoint use the average in it.
        """
        self._average_fn = average_fn
        self._use_buffers = use_buffers
        self._device = device
        self._evaluates_in_fit = evaluates_in_fit
        self._evaluates = evaluates
        self._average: AveragedModel | None = None
        self._source: Any = None  # LocalWeights, where there is an average
        self._is_exchanged = self._is_given = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_average": None, "_source": None}

    @property
    def num_averaged(self) -> int:
        """The number of states of the weights in the average."""
        if self._average is None:
            return 0
        return int(self._average.n_averaged)

    def update(self) -> None:
        """All ranks. Update the average with the current weights."""
        assert self._average is not None
        self._average.update_parameters(self._source)

    def update_after_step(self, step: int) -> None:
        """All ranks. Update, if the newest optimizer step asks for it and hasn't got it. Meant to
        be overridden.

        Called before the average is saved: a callback that is called earlier may save between the
        step and the update.

        Args:
            step: the number of optimizer steps so far.
        """

    def restore_trained(self) -> None:
        """All ranks. Restore the trained weights, if a validation run has the average."""
        if self._is_exchanged:
            self._exchange()

    def apply_masks(self, masks: Mapping[str, torch.Tensor]) -> None:
        """Multiply the average by masks, each under its parameter's name; of weights that aren't in
        shards.

        For callbacks that hold weights at zero: the average would remember what they were before.
        """
        if self._average is None:
            return
        with torch.inference_mode(False), torch.no_grad():
            tensors = _tensors_of(self._average.module)
            for name, tensor in zip(self._source.leaves, tensors, strict=True):
                if name in masks:
                    tensor.mul_(masks[name].to(tensor))

    # life -----------------------------------------------------------------------------------------

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse a strategy whose module has old weights between two steps.

        Raises:
            UnsupportedError: the strategy runs compiled programs, in which the weights stay.
        """
        refuse_capabilities(
            type(self).__name__,
            trainer.strategy,
            Capability.COMPILED_STEP,
            reason="reads weights between two steps",
            cure="Leave one of them out.",
        )

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Make room for the average.

        Raises:
            UnsupportedError: the strategy spreads the weights over ranks in a way of its own.
        """
        self._build(trainer, module)

    def on_fit_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Give the module its average."""
        if self.num_averaged:
            self._exchange()
            self._is_exchanged = False
            self._is_given = True

    def on_exception(self, trainer: Trainer, module: nn.Module, exception: BaseException) -> None:
        """Give the module its own weights back, before they are saved."""
        self._return()

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Forget the trained weights of a fit before."""
        self._forget()

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Forget the average, which the module has, or a checkpoint. The trained weights stay if
        they can be saved.
        """
        self._return()
        if self._average is None or not self._is_given or trainer.run.finished_fit is None:
            self._forget()
        elif not trainer.options.keep_on_device:
            self._average.cpu()

    # checkpoints ----------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Add the average.

        Raises:
            ConfigurationError: the module has the average at this moment, so that its weights would
                be saved wrongly.
        """
        if self._is_exchanged:
            raise ConfigurationError(
                f"A checkpoint was asked for while {type(self).__name__} lends its average to a "
                "validation run. Save after the run, in on_validation_end of a callback that comes "
                "later, or in a training hook."
            )
        if self._average is not None:
            if not self._is_given:
                self.update_after_step(trainer.global_step)
            checkpoint["num_averaged"] = self.num_averaged
            name = "average"
            if self._is_given:  # which the module has, then
                name = "trained"
            is_whole = trainer.strategy.checkpoint_io.layout == "full"
            checkpoint[name] = self._source.placed(self._average.module, whole=is_whole)

    def on_load_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the average; and the trained weights, if the module was saved with its average.

        Raises:
            CheckpointError: it belongs to another model.
        """
        # what is loaded into the module is the average
        is_given = trainer.stage == "fit" and "trained" in checkpoint
        saved = checkpoint.get("average")
        if is_given:
            saved = checkpoint["trained"]
        if saved is None:
            return
        average = self._average or self._build(trainer, module)
        differing = saved.keys() ^ self._source.leaves.keys()
        if differing:
            raise CheckpointError(
                f"The checkpoint's average of {type(self).__name__} doesn't fit the model: only "
                f"one of the two has {min(differing)!r}. Build the model as it was, or leave the "
                "callback out."
            )
        average.n_averaged.fill_(checkpoint["num_averaged"])
        with torch.no_grad():
            parts = iter(_tensors_of(average.module))
            for name, leaf in self._source.leaves.items():
                for part in own_part(saved[name], leaf):
                    next(parts).copy_(part)
        if is_given:
            self._exchange()
            self._is_exchanged = False

    # evaluation -----------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Lend the module the average."""
        wanted = self._evaluates
        if trainer.stage == "fit":
            wanted = self._evaluates_in_fit
        if wanted and self.num_averaged and not self._is_exchanged:
            self._exchange()

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Restore the trained weights."""
        self.restore_trained()

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def _return(self) -> None:
        """This rank alone."""
        if self._is_exchanged:
            self._exchange(is_agreed=False)

    # the tensors ----------------------------------------------------------------------------------

    def _build(self, trainer: Trainer, module: nn.Module) -> AveragedModel:
        from torch.optim.swa_utils import AveragedModel

        self._source = find_local_weights(trainer.strategy, module)
        self._average = AveragedModel(
            self._source,
            self._device,  # type: ignore[arg-type]  # passed on to `to`, which takes names
            multi_avg_fn=self._average_fn,
            use_buffers=self._use_buffers,
        )
        self._is_exchanged = self._is_given = False
        return self._average

    def _forget(self) -> None:
        self._average = self._source = None
        self._is_given = False

    def _exchange(self, *, is_agreed: bool = True) -> None:
        """Swap the module's tensors and the average, in place, one at a time; all ranks if it
        `is_agreed`.
        """
        assert self._average is not None
        await_copies()
        # The hooks of a validation run are called in inference mode, whose tensors must not stay.
        with torch.inference_mode(False), torch.no_grad():
            tensors = _tensors_of(self._average.module)
            for own, other in zip(_tensors_of(self._source), tensors, strict=True):
                kept = own.clone()
                own.copy_(other)
                other.copy_(kept)
            if is_agreed:
                self._source.notify()
        self._is_exchanged = not self._is_exchanged


def _tensors_of(parts: nn.Module) -> list[torch.Tensor]:
    """Parameters, then buffers, in the order of their names."""
    return [tensor.detach() for tensor in (*parts.parameters(), *parts.buffers())]
