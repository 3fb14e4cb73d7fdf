"""DiLoCo: local steps on every rank, and now and then one outer step for all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from core import Capability, ConfigurationError
from core.strategies import ParallelStrategy, refuse_unlike_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer


class DilocoStrategy(ParallelStrategy):
    """Trains every rank alone for `period` steps, then takes one outer step of SGD with Nesterov
    momentum.

    The outer gradient of a parameter is its value when the round began, less the mean over ranks of
    its value now. All ranks begin the next round with the result. The user's optimizer is the inner
    one, and its moments stay local.
    """

    bytes_sent: int = 0
    """Bytes of the tensors that this rank has given to collectives, to keep the ranks' models
    together.
    """

    num_outer_steps: int = 0
    """Outer steps that this instance has taken."""

    def __init__(self, *, period: int = 100, outer_lr: float = 0.7, outer_momentum: float = 0.9, **parts: Any) -> None:
        """Say how long ranks train alone, and how they come together.

        Args:
            period: inner steps of each rank between two outer steps, at least 1. The paper has 500.
            outer_lr: learning rate of the outer step, more than 0. With 1, and no momentum, the
                result is the mean.
            outer_momentum: Nesterov momentum of the outer step, from 0 to less than 1.
            parts: of `core.strategies.ParallelStrategy`.
        """
        super().__init__(**parts)
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise ConfigurationError(f"diloco: period has to be a whole number, 1 or more, and is {period!r}.")
        if not _is_number(outer_lr) or not 0 < outer_lr < math.inf:
            raise ConfigurationError(f"diloco: outer_lr has to be a number above 0, and is {outer_lr!r}.")
        if not _is_number(outer_momentum) or not 0 <= outer_momentum < 1:
            raise ConfigurationError(
                f"diloco: outer_momentum has to be at least 0 and below 1, and is {outer_momentum!r}."
            )
        self.period = period
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        # By parameter. The same on all ranks, since all call `optimizer_step` equally often.
        self._position: dict[Tensor, int] = {}
        self._outer: dict[Tensor, Tensor] = {}
        self._momentum: dict[Tensor, Tensor] = {}
        self._apart = False

    @property
    def capabilities(self) -> Capability:
        """Those of every parallel strategy, without losses that say what they weigh: each rank
        steps by itself.

        Gradients are never exchanged, so `no_backward_sync` leaves nothing to exchange.
        """
        return (super().capabilities | Capability.NO_SYNC) & ~Capability.WEIGHTED_LOSSES

    def check(self) -> None:
        """Refuse a scaled loss: each rank would skip steps of its own, and ranks would count
        differently.
        """
        if getattr(self.precision_plugin, "name", None) == "16-mixed":
            raise ConfigurationError("diloco: each rank would skip other steps with 16-mixed. Choose bf16-mixed.")
        super().check()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move the module, and begin with the weights of rank 0."""
        refuse_unlike_modules(self, module)
        super().setup_module(module)
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.copy_(self.broadcast(tensor.data))
        return self.model

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. A step of this rank alone, and after `period` of them the outer step."""
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad or parameter in self._outer
        ]
        position = max((self._position.get(parameter, 0) for parameter in parameters), default=0)
        for parameter in parameters:
            if position == 0 or parameter not in self._outer:
                self._outer[parameter] = parameter.detach().clone()
        updated = super().optimizer_step(optimizer, closure)
        self._apart = True
        position = (position + 1) % self.period
        self._position.update(dict.fromkeys(parameters, position))
        if position == 0:
            self._take_outer_step(parameters)
        return updated

    @torch.no_grad()
    def _take_outer_step(self, parameters: list[Tensor]) -> None:
        gradients = self._average([self._outer[parameter] - parameter for parameter in parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if self.outer_momentum:
                momentum = self._momentum.setdefault(parameter, torch.zeros_like(parameter))
                momentum.mul_(self.outer_momentum).add_(gradient)
                gradient.add_(momentum, alpha=self.outer_momentum)
            parameter.copy_(self._outer[parameter].sub_(gradient, alpha=self.outer_lr))
        self._share_buffers()
        self.num_outer_steps += 1

    @torch.no_grad()
    def synchronize_model(self) -> None:
        """All ranks. Continue with the mean of the ranks' parameters and moments. The round goes on
        where it was.
        """
        super().synchronize_model()
        if not self._apart:
            return
        parameters = [parameter for parameter in self._outer if self._position[parameter]]
        for parameter, mean in zip(parameters, self._average(parameters), strict=True):
            parameter.copy_(mean)
        for optimizer in self.optimizers:
            self._average_moments(optimizer)
        self._share_buffers()
        self._apart = False

    def _average_moments(self, optimizer: Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # A rank that has not yet used a parameter has no moments of it: all learn who has which.
        mine = {
            (index, key): (tuple(value.shape), value.dtype, value.device.type)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else None
            for index, parameter in enumerate(parameters)
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        ranks = self.broadcast(self.gather_objects(mine))
        slots = sorted({slot for rank in ranks for slot in rank}, key=lambda slot: (slot[0], str(slot[1])))
        holders = {slot: [number for number, rank in enumerate(ranks) if slot in rank] for slot in slots}
        floating = [slot for slot in slots if len({rank[slot] for rank in ranks if slot in rank} | {None}) == 2]
        floating = [slot for slot in floating if all(rank[slot] for rank in ranks if slot in rank)]
        values = []
        for index, key in floating:
            shape, dtype, device = ranks[holders[index, key][0]][index, key]
            value = optimizer.state.get(parameters[index], {}).get(key)
            place = parameters[index].device if device != "cpu" else device
            values.append(torch.zeros(shape, dtype=dtype, device=place) if value is None else value)
        for (index, key), value, mean in zip(floating, values, self._average(values), strict=True):
            mean.mul_(self.world_size / len(holders[index, key]))
            optimizer.state[parameters[index]][key] = value.copy_(mean)
        for slot in slots:
            if slot not in floating:
                index, key = slot
                value = optimizer.state.get(parameters[index], {}).get(key)
                optimizer.state[parameters[index]][key] = self.broadcast(value, holders[slot][0])

    def _share_buffers(self) -> None:
        for handle in self.session.handles:
            for buffer in handle.module.buffers():
                self.bytes_sent += buffer.nbytes
                buffer.copy_(self.broadcast(buffer))

    def _average(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """All ranks. The means over ranks, by one message for each dtype."""
        tensors = list(tensors)
        means: list[Tensor] = [torch.empty(0)] * len(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
            message = torch.cat([tensors[index].detach().to(self.root_device).flatten() for index in chosen])
            self.bytes_sent += message.nbytes
            parts = self.reduce(message).split([tensors[index].numel() for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                means[index] = part.view(tensors[index].shape).to(tensors[index].device)
        return means

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """All ranks. Restore weights, and begin a round with them, unless the state of ranks
        follows.
        """
        super().load_module_state_dict(module, state, strict=strict)
        self._begin_anew(module.parameters())

    def _begin_anew(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            for kept in (self._position, self._outer, self._momentum):
                kept.pop(parameter, None)

    def _names(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": parameter
            for number, handle in enumerate(self.session.handles)
            for name, parameter in handle.module.named_parameters()
        }

    def rank_state_dict(self) -> dict[str, Any]:
        """All ranks. The position in the round, outer parameters and outer momentum; on rank 0, for
        all ranks.

        Between two rounds the outer parameters are those of the model, and aren't written twice.
        """
        if not self.is_global_zero:
            return {}
        return {
            name: {
                "position": self._position[parameter],
                "outer": self._outer[parameter] if self._position[parameter] else None,
                "momentum": self._momentum.get(parameter),
            }
            for name, parameter in self._names().items()
            if parameter in self._position
        }

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks. Take over the round that was saved, from rank 0."""
        names = self._names()
        self._begin_anew(names.values())
        for name, values in self.broadcast(dict(state) if self.is_global_zero else None).items():
            parameter = names[name]
            self._position[parameter] = values["position"]
            outer = parameter.detach() if values["outer"] is None else values["outer"]
            self._outer[parameter] = outer.to(parameter.device, copy=True)
            if values["momentum"] is not None:
                self._momentum[parameter] = values["momentum"].to(parameter.device, copy=True)

    def release(self) -> None:
        """All ranks. Forget the round, and all else that belongs to the modules."""
        super().release()
        for kept in (self._position, self._outer, self._momentum):
            kept.clear()
        self._apart = False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
