"""The weights of losses: a step learns from the mean over all items of its window,
`sum(weight * loss) / sum(weight)`.

The sum goes over the window's batches and the shards of the data. Samples weigh by
`TrainingStep.weight`, whose sum is known before. Here are the weights that a user gives: nobody
knows their sum before the window's last forward. Loaded when one is given, and not before.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any

from core.contract.capability import Capability
from core.contract.errors import ModuleError, UnsupportedError
from core.session.optimizer_state import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from core.contract.step import TrainingStep


_ALL_OR_NONE = (
    "Give one with each loss, or with none: a window's gradient is the mean over all its items."
)
_EXPECTED = (
    "Expected the number of items that the loss is a mean over, at least 0: a number, or a "
    "tensor with one element."
)


@dataclass(slots=True)
class Window:
    """The losses since an optimizer's last step.

    Attributes:
        own: sum of the weights on this rank.
        total: sum over the shards of the data, once the gradients are those of the mean over all
            items.
        has_gradients: parameters had some after the last backward of a loop by hand.
    """

    own: float | Tensor = 0.0
    total: float | Tensor | None = None
    has_gradients: bool = False


class Weights:
    """The weights of one accumulation window after the other, for each optimizer.

    A window of one batch sums the weights of all ranks between forward and backward. In a longer
    one each loss is weighted by its share of `reference`, and the gradients are corrected by one
    factor when the window is complete. The reference is a power of two near the weight of a window:
    products with it are exact, so that gradients don't depend on which one it is, and a run that
    goes on from a checkpoint has the same bits.

    Attributes:
        by_hand: the user calls backward, and windows end where an optimizer steps.
        given: by the running step, until its loss is weighted.
    """

    def __init__(  # a Session, whose module imports this one
        self, session: Any, by_hand: Sequence[Optimizer] | None
    ) -> None:
        """All ranks, at the first weight. Refuse what can't be weighted, before ranks wait for each
        other.

        Args:
            session: with the ranks.
            by_hand: the optimizers that were set up, if the user calls backward.

        Raises:
            UnsupportedError: the strategy can't weigh losses.
            ModuleError: losses of other ranks have none, or losses before had none.
        """
        import torch

        self._world = world = session.strategy
        if Capability.WEIGHTED_LOSSES not in world.capabilities:
            raise UnsupportedError(
                f"A loss has a weight, and {type(world).__name__} can't weigh losses: its "
                "gradients are no mean over ranks that the core could correct. Leave the weight "
                "out, or use another strategy, such as ddp.",
                capability=Capability.WEIGHTED_LOSSES,
            )
        self.by_hand = by_hand is not None
        self.given: float | Tensor | None = None
        self._has_peers = session.has_peers
        self._dtype = torch.float64
        if world.root_device.type == "mps":
            self._dtype = torch.float32
        self._reference = 0.0
        self._windows: dict[int, Window] = {}
        others = []
        if self._has_peers:
            others = world.absent_ranks("the first weight of a loss")
        if others:
            names = ", ".join(f"rank {other}" for other in others)
            raise ModuleError(
                f"A loss has a weight on rank {world.global_rank}, and not on {names}. Give one on "
                "all ranks, also where it is 0."
            )
        gradients = chain.from_iterable(map(_gradients_of, by_hand or ()))
        if any(bool(grad.any()) for grad in gradients if not grad.is_sparse):
            raise ModuleError(
                f"A loss has a weight, and there are gradients of losses without. {_ALL_OR_NONE}"
            )

    def share(self, loss: Tensor, step: TrainingStep) -> Tensor:
        """All ranks. The loss of a training step, as backward takes it; see `correct`.

        Raises:
            ModuleError: this step gave no weight, or what can't be one.
        """
        given = self.given
        self.given = None
        own: float | Tensor = 0.0  # of samples that another rank counts
        if step.weight != 0:
            own = self._checked(given)
        optimizers: Sequence[Any] = step.optimizers[:1] or [None]
        if step.num_accumulated > 1:
            self._add(own, optimizers)
            return self._scaled(loss, own, step.num_accumulated)
        import torch

        total = self._sum(own)
        self._windows[id(optimizers[0])] = Window(own, total)
        shared = own * self._world.data_parallel_size
        if isinstance(total, torch.Tensor):
            part: float | Tensor = torch.where(total == 0, 0.0, shared / total)
        else:
            part = shared / (total or math.inf)
        return loss * part

    def backward(
        self,
        loss: Tensor,
        weight: float | Tensor | None,
        run: Callable[[Tensor], None],
        optimizers: list[Optimizer],
    ) -> None:
        """All ranks. Run backward in a loop by hand. The loss belongs to the optimizers whose
        gradients it changes.

        Raises:
            ModuleError: there are several optimizers, and no gradient of any has changed; or the
                weight can't be one.
        """
        own = self._checked(weight)
        # Go on with windows that were corrected; forget those that were cleared.
        for optimizer in optimizers:
            window = self._windows.get(id(optimizer), Window())
            if window.has_gradients and not _gradients_of(optimizer):  # after `model.zero_grad()`
                self.drop(optimizer)
            elif window.total is not None:
                total, window.total = _read(window.total), None
                if total:
                    shards = self._world.data_parallel_size
                    self._world.scale_gradients(optimizer, total / (shards * self._reference))
        if len(optimizers) == 1:
            run(self._scaled(loss, own, 1))
        else:
            before = {optimizer: _versions(optimizer) for optimizer in optimizers}
            run(self._scaled(loss, own, 1))
            optimizers = [each for each, versions in before.items() if _versions(each) != versions]
        if not optimizers:
            raise ModuleError(
                "A loss with a weight has changed no gradient of an optimizer that was set up, so "
                "it isn't known in whose step its weight counts. Remove no_backward_sync, or give "
                "weights to one optimizer's losses only."
            )
        self._add(own, optimizers)
        for optimizer in optimizers:
            self._windows[id(optimizer)].has_gradients = bool(_gradients_of(optimizer))

    def correct(self, optimizer: Optimizer) -> None:
        """All ranks, when the window's gradients are complete. Make them those of the mean over all
        items.
        """
        window = self._windows.get(id(optimizer))
        if window is not None and window.total is None:
            window.total = total = _read(self._sum(window.own))
            if total:
                shards = self._world.data_parallel_size
                self._world.scale_gradients(optimizer, shards * self._reference / total)

    def close(self, optimizer: Optimizer) -> bool:
        """All ranks, before the optimizer steps. True if the window has weight; False if it has
        nothing to learn from.

        Raises:
            ModuleError: a weight can't be one.
        """
        self.correct(optimizer)
        window = self._windows.pop(id(optimizer), None)
        if window is None:
            return False
        total = _read(window.total)
        if total and not self._windows:  # others have begun with the reference that is
            self._refer_to(total)
        return total > 0

    def drop(self, optimizer: Optimizer) -> None:
        """Forget the window of an optimizer whose gradients were cleared."""
        self._windows.pop(id(optimizer), None)

    def _add(self, own: float | Tensor, optimizers: Sequence[Any]) -> None:
        for optimizer in optimizers:
            window = self._windows.setdefault(id(optimizer), Window())
            window.own = window.own + own

    def _scaled(self, loss: Tensor, own: float | Tensor, num_accumulated: int) -> Tensor:
        if not self._reference:
            self._refer_to(_read(self._sum(own)) * num_accumulated)
        return loss * (own / (self._reference or 1.0))

    def _refer_to(self, total: float) -> None:
        """Set the reference by the weight of a window. One of no weight leaves it open."""
        self._reference = 0.0
        if total:
            self._reference = 2.0 ** round(math.log2(total / self._world.data_parallel_size))

    def _checked(self, weight: Any) -> float | Tensor:
        """The weight as it is computed with. One on a device is checked there: what can't be one
        becomes NaN.
        """
        import torch

        if weight is None:
            raise ModuleError(f"A loss has no weight, and one before had one. {_ALL_OR_NONE}")
        if isinstance(weight, torch.Tensor) and weight.numel() == 1 and not weight.is_complex():
            weight = weight.detach().reshape(())
            if not weight.is_cpu:
                number = weight.to(self._dtype)
                return torch.where((number >= 0) & number.isfinite(), number, math.nan)
            weight = weight.item()
        is_number = isinstance(weight, Real)  # NumPy's too
        if not (is_number and 0 <= weight <= sys.float_info.max):  # Python's integers may be larger
            shape = tuple(getattr(weight, "shape", ()))
            given = repr(weight)
            if shape:
                given = f"a tensor of shape {shape}"
            raise ModuleError(f"A loss has the weight {given:.80}. {_EXPECTED}")
        return float(weight)

    def _sum(self, own: float | Tensor) -> float | Tensor:
        """All ranks. The sum over shards of the data, whose copies on other ranks don't count."""
        import torch

        if not self._has_peers:
            return own
        own = torch.as_tensor(own, dtype=self._dtype, device=self._world.root_device)
        summed: Tensor = self._world.reduce(own, reduce_op="sum")
        scaled: Tensor = summed * self._world.data_parallel_size / self._world.world_size
        return scaled


def _read(total: Any) -> float:
    number = float(total)
    if math.isnan(number):
        raise ModuleError(
            "A loss of this step has a weight that is negative, infinite or not a number, on "
            "this rank or on another one. " + _EXPECTED
        )
    return number


def _gradients(optimizer: Optimizer) -> list[Any]:
    """The gradient of each parameter; of those in shards, this rank's own, and None for none."""
    gradients = [each.grad for each in parameters_of(optimizer)]
    return [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]


def _gradients_of(optimizer: Optimizer) -> list[Tensor]:
    return [gradient for gradient in _gradients(optimizer) if gradient is not None]


def _versions(optimizer: Optimizer) -> list[tuple[int, int]]:
    """Numbers that change when one of the gradients does."""
    return [(id(grad), getattr(grad, "_version", 0)) for grad in _gradients(optimizer)]


def scale_gradients(optimizer: Optimizer, factor: float) -> None:
    """Multiply the gradients of an optimizer's parameters in place; of those in shards, this rank's
    own.
    """
    import torch

    with torch.no_grad():
        torch._foreach_mul_(_gradients_of(optimizer), factor)
