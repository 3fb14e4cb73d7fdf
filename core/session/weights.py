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
from numbers import Real
from typing import TYPE_CHECKING, Any

from core.contract.errors import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor
    from torch.optim import Optimizer

    from core.contract.step import TrainingStep
    from core.contract.world import World


@dataclass(slots=True)
class Window:
    """The losses since an optimizer's last step.

    Attributes:
        own: sum of the weights on this rank.
        total: sum over the shards of the data, when it is known.
        is_corrected: the gradients are those of the mean over all items.
        has_gradients: parameters had some after the last backward of a loop by hand.
    """

    own: float | Tensor = 0.0
    total: float | Tensor | None = None
    is_corrected: bool = False
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

    def __init__(
        self,
        world: World,
        device: torch.device,
        scale_gradients: Callable[[Optimizer, float], None],
        *,
        has_peers: bool,
        by_hand: Sequence[Optimizer] | None,
    ) -> None:
        """All ranks, at the first weight. Refuse what can't be weighted, before ranks wait for each
        other.

        Args:
            world: the strategy's ranks.
            device: of this rank.
            scale_gradients: the strategy's.
            has_peers: the ranks reach each other.
            by_hand: the optimizers that were set up, if the user calls backward.

        Raises:
            ModuleError: losses of other ranks have none, or losses before had none.
        """
        import torch

        self.by_hand = by_hand is not None
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self.given: float | Tensor | None = None
        self._world, self._device, self._scale_gradients, self._has_peers = (
            world,
            device,
            scale_gradients,
            has_peers,
        )
        self._reference = 0.0
        self._windows: dict[int, Window] = {}
        if has_peers and (others := world.absent_ranks("the first weight of a loss")):
            names = ", ".join(f"rank {other}" for other in others)
            raise ModuleError(
                f"A loss has a weight on rank {world.global_rank}, and not on {names}. Give one on "
                "all ranks, also where it is 0."
            )
        if any(map(_has_gradients, by_hand or ())):
            raise ModuleError(
                f"A loss has a weight, and there are gradients of losses without. {_ALL_OR_NONE}"
            )

    def share(self, loss: Tensor, step: TrainingStep) -> Tensor:
        """All ranks. The loss of a training step, as backward takes it; see `correct`.

        Raises:
            ModuleError: this step gave no weight, or what can't be one.
        """
        given, self.given = self.given, None
        # or samples that another rank counts
        own = self._checked(given) if step.weight != 0 else 0.0
        optimizer = step.optimizers[0] if step.optimizers else None
        if step.num_accumulated > 1:
            self._add(own, [optimizer])
            return self._scaled(loss, own, step.num_accumulated)
        total = self._sum(own)
        self._windows[id(optimizer)] = Window(own, total, is_corrected=True)
        return loss * _quotient(own * self._world.data_parallel_size, total)

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
        for optimizer in optimizers:
            self._reopen(optimizer)
        before = [_versions(optimizer) for optimizer in optimizers] if len(optimizers) > 1 else [[]]
        run(self._scaled(loss, own, 1))
        if len(optimizers) > 1:
            optimizers = [
                each for each, old in zip(optimizers, before, strict=True) if _versions(each) != old
            ]
        if not optimizers:
            raise ModuleError(
                "A loss with a weight has changed no gradient of an optimizer that was set up, so "
                "it isn't known in whose step its weight counts. Remove no_backward_sync, or give "
                "weights to one optimizer's losses only."
            )
        self._add(own, optimizers)
        for optimizer in optimizers:
            self._windows[id(optimizer)].has_gradients = _has_any(optimizer)

    def correct(self, optimizer: Optimizer) -> None:
        """All ranks, when the window's gradients are complete. Make them those of the mean over all
        items.
        """
        window = self._windows.get(id(optimizer))
        if window is None or window.is_corrected:
            return
        window.is_corrected = True
        window.total = total = self._read(self._sum(window.own))
        if total:
            self._scale_gradients(
                optimizer, self._world.data_parallel_size * self._reference / total
            )

    def close(self, optimizer: Optimizer) -> bool:
        """All ranks, before the optimizer steps. True if the window has weight; False if it has
        nothing to learn from.

        Raises:
            ModuleError: a weight can't be one.
        """
        self.correct(optimizer)
        window = self._windows.pop(id(optimizer), None)
        total = 0.0 if window is None else self._read(window.total)
        if total and not self._windows:  # others have begun with the reference that is
            self._refer_to(total)
        return total > 0

    def drop(self, optimizer: Optimizer) -> None:
        """Forget the window of an optimizer whose gradients were cleared."""
        self._windows.pop(id(optimizer), None)

    def _reopen(self, optimizer: Optimizer) -> None:
        """All ranks, before a backward by hand. Go on with a window that was corrected; forget one
        that was cleared.
        """
        if (window := self._windows.get(id(optimizer))) is None:
            return
        if window.has_gradients and not _has_any(optimizer):  # after `model.zero_grad()`, say
            self.drop(optimizer)
        elif window.is_corrected:
            window.is_corrected = False
            if total := self._read(window.total):
                shards = self._world.data_parallel_size
                self._scale_gradients(optimizer, total / (shards * self._reference))

    def _add(self, own: float | Tensor, optimizers: Sequence[Optimizer | None]) -> None:
        for optimizer in optimizers:
            window = self._windows.setdefault(id(optimizer), Window())
            window.own = window.own + own

    def _scaled(self, loss: Tensor, own: float | Tensor, num_accumulated: int) -> Tensor:
        if not self._reference:
            self._refer_to(self._read(self._sum(own)) * num_accumulated)
        return loss * (own / (self._reference or 1.0))

    def _refer_to(self, total: float) -> None:
        """Set the reference by the weight of a window. One of no weight leaves it open."""
        self._reference = (
            2.0 ** round(math.log2(total / self._world.data_parallel_size)) if total else 0.0
        )

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
            raise ModuleError(_describe(weight))
        return float(weight)

    def _sum(self, own: float | Tensor) -> float | Tensor:
        """All ranks. The sum over shards of the data, whose copies on other ranks don't count."""
        import torch

        if not self._has_peers:
            return own
        summed = self._world.reduce(
            torch.as_tensor(own, dtype=self._dtype, device=self._device), reduce_op="sum"
        )
        return summed * self._world.data_parallel_size / self._world.world_size

    def _read(self, total: float | Tensor | None) -> float:
        number = 0.0 if total is None else float(total)
        if math.isnan(number):
            raise ModuleError(
                "A loss of this step has a weight that is negative, infinite or not a number, on "
                "this rank or on another one. " + _EXPECTED
            )
        return number


_EXPECTED = (
    "Expected the number of items that the loss is a mean over, at least 0: a number, or a "
    "tensor with one element."
)
_ALL_OR_NONE = (
    "Give one with each loss, or with none: a window's gradient is the mean over all its items."
)


def _describe(weight: Any) -> str:
    shape = tuple(getattr(weight, "shape", ()))
    given = f"a tensor of shape {shape}" if shape else repr(weight)
    return f"A loss has the weight {given:.80}. {_EXPECTED}"


def _quotient(part: float | Tensor, total: float | Tensor) -> float | Tensor:
    """`part / total`, and 0 where there is nothing."""
    import torch

    if isinstance(total, torch.Tensor):
        return torch.where(total == 0, 0.0, part / total)
    return part / total if total else 0.0


def _parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """The gradients of an optimizer's parameters; of those in shards, this rank's own."""
    gradients = (
        parameter.grad for parameter in _parameters_of(optimizer) if parameter.grad is not None
    )
    return [grad.to_local() if hasattr(grad, "to_local") else grad for grad in gradients]


def _versions(optimizer: Optimizer) -> list[tuple[int, int]]:
    """Numbers that change when one of the gradients does."""
    found = (parameter.grad for parameter in _parameters_of(optimizer))
    gradients = [getattr(grad, "_local_tensor", grad) for grad in found]
    return [(0, 0) if grad is None else (id(grad), grad._version) for grad in gradients]


def _has_any(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for parameter in _parameters_of(optimizer))


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(bool(grad.any()) for grad in _gradients_of(optimizer) if not grad.is_sparse)


def scale_gradients(optimizer: Optimizer, factor: float) -> None:
    """Multiply the gradients of an optimizer's parameters in place; of those in shards, this rank's
    own.
    """
    import torch

    with torch.no_grad():
        torch._foreach_mul_(_gradients_of(optimizer), factor)
