"""Stage 0: nothing is cut. DeepSpeed's engine exchanges gradients, and has masters of what is in 16
bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import TensorDescription
from core_deepspeed.engine import ZeroEngine
from core_deepspeed.state import check_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core_deepspeed.layout_guard import LayoutGuard


class WholeEngine(ZeroEngine):
    """One module in DeepSpeed's engine at stage 0, and the optimizer of it; gradients are in
    `parameter.grad`.

    In float32 DeepSpeed steps the user's optimizer, of the user's parameters. In 16 bits that one
    gets masters.

    Attributes:
        masters: float32 copies that the optimizer steps, by the parameters that are computed with.
    """

    def __init__(
        self, deepspeed: Any, module: nn.Module, optimizer: Optimizer, config: dict[str, Any]
    ) -> None:
        """All ranks. Make the engine, which converts the module."""
        self.masters: dict[Any, Tensor] = {}
        super().__init__(deepspeed, module, optimizer, config)
        if self._has_masters:
            pairs = zip(self.zero.fp16_groups, self.zero.fp32_groups, strict=True)
            self.masters = {
                one: master for group in pairs for one, master in zip(*group, strict=True)
            }
            self._undo_first_step(optimizer)

    def _undo_first_step(self, optimizer: Optimizer) -> None:
        """DeepSpeed 0.19 steps with gradients of zero to have the state made: weights decay, and
        the step counts.
        """
        for master in self.masters.values():
            optimizer.state.pop(master, None)
        self.zero.refresh_fp32_params()

    @property
    def _has_masters(self) -> bool:
        return self.zero is not self.optimizer

    def _guard_layout(self, optimizer: Optimizer) -> LayoutGuard | None:
        return super()._guard_layout(optimizer) if self._has_masters else None

    @property
    def groups(self) -> list[list[Any]]:
        """Parameters of the optimizer, group by group, as the user has them."""
        assert self.optimizer is not None, "without one there is no engine"
        return (
            self.given_groups
            if self._has_masters
            else [group["params"] for group in self.optimizer.param_groups]
        )

    def state(self, rank: int) -> WholeEngineState:
        """The engine's state at this moment, the same on all ranks."""
        return WholeEngineState(self)

    def _begin_backward(self, *, ends_window: bool) -> None:
        self.wrapped.set_gradient_accumulation_boundary(ends_window)

    def _leave_backward(self) -> None:
        """Do nothing: nothing was entered."""

    def _end_backward_of(self, other: ZeroEngine) -> None:
        """Gradients that the loss of another engine has brought are exchanged before the step."""
        self.wrapped._running_engine_backward = False
        if self._gradients():
            self._num_backwards += 1
            self._is_complete = False

    def scale(self, factor: float) -> None:
        """All ranks. Multiply the gradients of the next step."""
        for gradient in self._gradients():
            gradient.mul_(factor)

    def _unscale(self) -> None:
        """Do nothing: gradients themselves were multiplied."""

    def _set_max_norm(self, max_norm: float) -> None:
        if self._has_masters:
            self.zero.clip_grad = max_norm
        else:
            self.wrapped._config.gradient_clipping = max_norm

    def _norm(self) -> Tensor:
        norms = [torch.linalg.vector_norm(gradient.float()) for gradient in self._gradients()]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

    def _gradients(self) -> list[Tensor]:
        return [
            parameter.grad
            for group in self.groups
            for parameter in group
            if parameter.grad is not None
        ]

    def _drop_gradients(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None


class WholeEngineState:
    """The state of an engine of stage 0, parameter by parameter."""

    def __init__(self, engine: WholeEngine) -> None:
        self._engine = engine

    def parameter(self, parameter: Tensor) -> Tensor:
        """A parameter's value: its master copy if it has one."""
        return self._engine.masters.get(parameter, parameter).detach()

    def load_parameter(self, name: str, parameter: Tensor, saved: Any) -> None:
        """Restore a value.

        Raises:
            CheckpointError: it has another shape.
        """
        target = self.parameter(parameter)
        check_shape(self._engine.module, name, saved, target)
        if target.data_ptr() != saved.data_ptr():  # else a checkpoint was read into it
            target.copy_(saved)

    def refresh(self) -> None:
        """All ranks. Copy the masters to the parameters of the computation, after parameters were
        loaded.
        """
        for parameter, master in self._engine.masters.items():
            parameter.data.copy_(master)

    def optimizer_entries(self, names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
        """The optimizer's state, by names of parameters."""
        state = self._optimizer.state
        return {
            name: dict(state[held]) for name, held in self._held(names).items() if held in state
        }

    def optimizer_targets(
        self, described: Mapping[str, Any], names: Mapping[int, str]
    ) -> dict[str, dict[str, Any]]:
        """The optimizer's own tensors, where they are as the saved ones; others are read whole."""
        state = self._optimizer.state
        return {
            name: {
                key: value
                for key, value in state.get(held, {}).items()
                if _is_like(value, described[name].get(key))
            }
            for name, held in self._held(names).items()
            if isinstance(described.get(name), dict)
        }

    def load_optimizer(self, saved: Mapping[str, Any], names: Mapping[int, str]) -> None:
        """Restore entries, as torch does: on the device and in the format of what they belong
        to.
        """
        state = self._optimizer.state_dict()
        held = list(self._held(names))
        state["state"] = {number: saved[name] for number, name in enumerate(held) if name in saved}
        self._optimizer.load_state_dict(state)

    def _held(self, names: Mapping[int, str]) -> dict[str, Tensor]:
        """The tensors that the optimizer steps, by names of the user's parameters, in its own
        order.
        """
        user_has = {id(master): parameter for parameter, master in self._engine.masters.items()}
        held = [one for group in self._optimizer.param_groups for one in group["params"]]
        return {names[id(user_has.get(id(one), one))]: one for one in held}

    @property
    def _optimizer(self) -> Optimizer:
        assert self._engine.optimizer is not None, "without one there is no engine"
        return self._engine.optimizer


def _is_like(value: Any, described: Any) -> bool:
    """True if a tensor of more than one number has the shape and dtype of a saved one."""
    if (
        not isinstance(value, torch.Tensor)
        or not isinstance(described, TensorDescription)
        or not value.dim()
    ):
        return False
    return (tuple(value.shape), value.dtype) == (described.shape, described.dtype)
