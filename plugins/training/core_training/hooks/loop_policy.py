"""The choices of the loops in which one Trainer differs from another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_training.hooks.callback import Callback


class LoopPolicy:
    """The choices of a Trainer's loops where trainers differ. Meant to be subclassed.

    The defaults are those of `core.Trainer`. Another Trainer, built on that class, overrides
    attributes and methods in a subclass, and sets `self.loop_policy` to an instance at the end of
    its `__init__`. The loops ask it in this order:

    1. `observers`, all ranks, when a stage begins.
    2. `steps_schedulers`, all ranks, when an epoch of training begins.
    3. `step_outputs`, all ranks, after each training batch, if a hook wants its outputs.
    4. `ends_cut_epochs`, all ranks, when a stop cuts an epoch.
    5. `asks_beyond_length`, all ranks, when all batches of an epoch are trained.

    With launchers that start processes, the policy is pickled.

    Attributes:
        observers: callbacks that the Trainer needs for itself. They are called before the user's,
            and no state of theirs is saved.
        steps_schedulers: the training loop steps learning-rate schedulers; else an observer does.
        ends_cut_epochs: an epoch that a stop cuts ends with its hooks, after a validation if one
            asked for the stop. Else a resumed run trains the rest of it.
        asks_beyond_length: a training loader that has given all of its batches is asked once more,
            as by a `for` loop.
    """

    observers: Sequence[Callback] = ()
    steps_schedulers: bool = True
    ends_cut_epochs: bool = False
    asks_beyond_length: bool = True

    def step_outputs(self, output: object, loss: Tensor | None) -> object:
        """The `outputs` that `on_train_batch_end` gets.

        Args:
            output: what `training_step` returned.
            loss: the loss in it, detached; None if the batch was skipped.

        Returns:
            By default the output, with its loss detached.
        """
        if type(output) is Tensor:
            return loss
        if isinstance(output, dict) and "loss" in output:
            return {**output, "loss": loss}
        return output
