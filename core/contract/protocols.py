"""The protocols of what few strategies do, and of the trainer that sets a strategy up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from core.contract.step import GradientClipping


@runtime_checkable
class SetsUpJointly(Protocol):
    """A strategy with `Capability.JOINT_SETUP`: an engine takes the module and its optimizers in
    one call.

    It takes the place of `setup_module` and `setup_optimizer` in the call sequence of `Strategy`. A
    module without optimizers, to be evaluated, goes to `setup_module` all the same.
    """

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Set up everything at once, as an engine wants it.

        Returns:
            The module, wrapped or not; the optimizers; and the scheduler, as an engine steps it or
            as it came.
        """


@runtime_checkable
class MakesOptimizers(Protocol):
    """A strategy that is asked for optimizers in the module's place: an engine's own configuration
    may name them.

    It is asked if it has the method. With `Capability.MAKES_OPTIMIZERS` the module needs no
    `configure_optimizers`.
    """

    def configure_optimizers(self, module: nn.Module) -> Any:
        """All ranks. The optimizers and schedulers of a module, in any form that a module may give
        them.

        Where the engine's configuration names none, they are those of
        `module.configure_optimizers()`.
        """


@runtime_checkable
class ComputesLoss(Protocol):
    """A strategy with `Capability.COMPUTES_LOSS`: the user's step runs for parts of a batch, or on
    some ranks only.

    A schedule of a pipeline does so. `Fabric.step` asks for it, since the user's own loop can't;
    the Trainer calls `step_callable("training_step")`, which does the same.
    """

    def compute_loss(self, step: Callable[[Any], Any], batch: Any, module: nn.Module) -> Any:
        """All ranks. Run the user's step on a batch, on the device, in as many calls as it takes.

        Args:
            step: `(batch) -> output`: the loss, or a dict with it under `"loss"` and its
                `"weight"`. It calls the module as it was set up.
            batch: of the user's own structure.
            module: that was set up, whose loss it is.

        Returns:
            On all ranks an output of the same form, whose loss has a graph for `backward`.
        """


@runtime_checkable
class KeepsRankState(Protocol):
    """A strategy whose ranks keep something of their own: the rest of a compression, counters,
    random numbers.

    A strategy that has both methods keeps rank state. Every checkpoint with an optimizer in it
    holds that of all ranks, with the Trainer and with `fabric.save`, and a run that goes on in as
    many processes gets it back, each rank its own. In another number of processes it begins anew,
    and a warning says so. State that all ranks share, such as an outer optimizer's, may be rank 0's
    alone, and is broadcast while it loads. Weights and moments aren't part of it.
    """

    def rank_state_dict(self) -> dict[str, Any] | None:
        """All ranks. The state of this rank: nested dicts with keys of text, and lists, of plain
        values and tensors.

        Returns:
            None, on all ranks, where this instance keeps nothing.
        """

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks, after modules and optimizers. Restore what this rank returned; tensors are on
        the CPU.

        Raises:
            CheckpointError: it is of other options than this instance has.
        """


class SetupHost(Protocol):
    """The interface of the trainer for `Strategy.setup`, which it calls."""

    @property
    def module(self) -> nn.Module:
        """The user's own module."""

    @property
    def trains(self) -> bool:
        """True if this stage needs optimizers."""

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches of an accumulation window, at the beginning: an engine's own configuration must
        agree.
        """

    @property
    def clipping(self) -> GradientClipping | None:
        """The gradient clipping to do. A strategy with `Capability.OWNS_CLIPPING` does it in its
        step.
        """

    def configure_model(self) -> None:
        """Call the user's `configure_model`, to build large layers in the context that the strategy
        has entered.
        """

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        """The optimizers, and their schedulers, that the user's module asks for."""

    def setup_dataloaders(self) -> None:
        """Shard the loaders of this stage and pass them through `Strategy.setup_dataloader`."""

    def restore(self) -> None:
        """Load the checkpoint that the user named, if any."""
