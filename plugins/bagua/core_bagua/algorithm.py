"""The interface between an algorithm and the strategy: when it is called, and what it may keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core import Capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from core import ConfigurationError
    from core_bagua.strategy import BaguaStrategy

# A second backward, for another optimizer, would send what it finds of the first one's gradients
# again.
_OF_ONE = Capability.SEVERAL_OPTIMIZERS | Capability.SEVERAL_MODULES


@dataclass(kw_only=True)
class Algorithm:
    """A way in which ranks come together. Meant to be subclassed; its fields are the options that
    it takes.

    One serves one run, of more than one process. Tensors come by the names of their parameters, the
    same on all ranks.

    Attributes:
        flatten: exchange all tensors of a format in one message, and not each in one.
        adds: capabilities that it has beyond those of every parallel strategy.
        lacks: capabilities that it takes away.
        drifts: weights of ranks differ between two steps.
        takes_scaled: gradients that are scaled, by another number now and then, do no harm.
    """

    flatten: bool = True
    # each rank steps by its own, at times at least
    adds: ClassVar[Capability] = Capability.OWNS_GRADIENTS
    lacks: ClassVar[Capability] = _OF_ONE
    drifts: ClassVar[bool] = True
    takes_scaled: ClassVar[bool] = True

    def problem(self, num_processes: int) -> ConfigurationError | None:
        """The reason why it can't run with these options, in so many processes. Main process."""
        return None

    def set_up(self, strategy: BaguaStrategy, optimizer: Optimizer) -> None:
        """All ranks, when the optimizer is set up."""

    def after_backward(self, gradients: Mapping[str, Tensor]) -> None:
        """All ranks, after a backward that isn't to stay local. Change gradients in place."""

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks, before the optimizer's step. Change weights in place."""

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks, after the optimizer's step. Change weights in place."""

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """All ranks, before weights become their mean. Finish what is on its way."""

    def state_dict(self) -> dict[str, Any] | None:
        """The state that this rank keeps; None, on all ranks, if nothing."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
