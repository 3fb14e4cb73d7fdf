"""Adam, of which ranks exchange compressed momenta once its variance has settled.

Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021. Here a momentum travels in eight bits, as Bagua's QAdam sends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from core import Capability, ConfigurationError
from core_bagua.algorithm import Algorithm
from core_bagua.compression import CompressedMean
from core_bagua.messages import exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from core_bagua.strategy import BaguaStrategy


class QAdamOptimizer(Optimizer):
    """Adam for `warmup_steps`; then with the variance as it is, and momenta that ranks average.

    On one device, and under other strategies, nothing is averaged.
    """

    average_momenta: Callable[[Mapping[Tensor, Tensor]], None] | None = None
    """Set by the algorithm `qadam`: averages momenta, by their parameters, in place."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """As torch's Adam.

        Args:
            params: parameters, or groups of them.
            lr: the learning rate.
            warmup_steps: number of steps in which the variance is learned, and gradients are
                exchanged in full.
            betas: of momentum and variance.
            eps: added to the root of the variance.
            weight_decay: times the weights, added to gradients.

        Raises:
            ConfigurationError: no step to learn a variance in.
        """
        if type(warmup_steps) is not int or warmup_steps < 1:
            raise ConfigurationError(
                f"QAdamOptimizer(warmup_steps={warmup_steps!r}): expected a number of steps from "
                "1, in which Adam's variance is learned: a tenth of the run or more."
            )
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.warmup_steps = warmup_steps

    @property
    def warms_up(self) -> bool:
        """True if the next step is one of the warm-up."""
        steps = max((entry["step"] for entry in self.state.values()), default=0)
        return bool(steps < self.warmup_steps)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        warms_up = self.warms_up
        trained = [
            (p, group) for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        for parameter, group in trained:
            self._learn(parameter, group, warms_up)
        if not warms_up and self.average_momenta is not None:
            self.average_momenta(
                {parameter: self.state[parameter]["exp_avg"] for parameter, _ in trained}
            )
        for parameter, group in trained:
            self._update(parameter, group)
        return loss

    def _learn(self, parameter: Tensor, group: dict[str, Any], warms_up: bool) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state |= {
                "step": 0,
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        state["step"] += 1
        assert parameter.grad is not None
        gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        if warms_up:
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        variance = state["exp_avg_sq"] / (1 - beta2 ** min(state["step"], self.warmup_steps))
        # Where no gradient was seen, what compression makes of nothing would be divided by nearly
        # nothing.
        momentum = torch.where(variance > 0, state["exp_avg"] / (1 - beta1 ** state["step"]), 0)
        parameter.addcdiv_(momentum, variance.sqrt().add_(group["eps"]), value=-group["lr"])


@dataclass(kw_only=True)
class QAdam(Algorithm):
    """Gradients are averaged in full while the optimizer warms up, its momenta in eight bits
    afterwards.

    Attributes:
        mean: the exchange, which keeps what is left out.
        optimizer: that was set up.
        names: of its parameters.
    """

    mean: CompressedMean = field(default_factory=CompressedMean, init=False)
    optimizer: QAdamOptimizer | None = field(default=None, init=False)
    names: dict[Tensor, str] = field(default_factory=dict, init=False)
    adds: ClassVar[Capability] = (
        Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS | Capability.OWNS_GRADIENTS
    )
    drifts: ClassVar[bool] = False
    takes_scaled: ClassVar[bool] = False

    def set_up(self, strategy: BaguaStrategy, optimizer: Optimizer) -> None:
        """All ranks.

        Raises:
            ConfigurationError: another optimizer.
        """
        if not isinstance(optimizer, QAdamOptimizer):
            raise ConfigurationError(
                f"BaguaStrategy(algorithm='qadam') got {type(optimizer).__name__}: it exchanges "
                "momenta of an optimizer of its own. Return "
                "core_bagua.QAdamOptimizer(self.parameters(), lr=..., warmup_steps=...)."
            )
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        self.names = dict(zip(parameters, strategy.parameter_names(optimizer), strict=True))
        self.optimizer = optimizer
        if strategy.world_size > 1:
            optimizer.average_momenta = self._average_momenta

    def after_backward(self, gradients: Mapping[str, Tensor]) -> None:
        """All ranks. Average gradients, while the optimizer warms up."""
        if self.optimizer is not None and self.optimizer.warms_up:
            exchange(gradients, _mean, flatten=self.flatten)

    def _average_momenta(self, momenta: Mapping[Tensor, Tensor]) -> None:
        named = {self.names[parameter]: momentum for parameter, momentum in momenta.items()}
        exchange(named, self.mean, flatten=self.flatten)

    def state_dict(self) -> dict[str, Any]:
        """The part of momenta that compression has left out on this rank."""
        return {"rest": self.mean.rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.mean.rest = dict(state["rest"])


def _mean(parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
    dist.all_reduce(message)
    return message / dist.get_world_size()
