"""Steps of training through DeepSpeed's engines: they scale losses, accumulate, clip and update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import Capability, ConfigurationError, UnsupportedError
from core.strategies import set_within
from core_deepspeed.states import EngineStates

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import GradientClipping

_TRAINS = frozenset({"training_step", "forward"})


class EngineSteps(EngineStates):
    """Base of `DeepSpeedStrategy`: trains and evaluates what its engines hold."""

    _knows_windows = False
    _is_accumulating = False

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. Training runs through the engine; so does evaluation where
        parameters are cut.
        """
        handle = self.session.handle_of(module)
        engine = self._engine_around(handle.wrapped)
        # Whole parameters need no engine to be evaluated; cut ones are gathered by its hooks.
        if engine is None or (self.stage < 3 and name not in _TRAINS):
            return super().step_callable(name, module)
        replacement = handle.user_callable(name) if handle.compiler is not None else None
        call = engine.router.route(engine.wrapped, name, replacement=replacement)
        return _without_inference_mode(call) if self.stage == 3 else call

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward through the engine, which scales the loss and accumulates gradients.

        Raises:
            ConfigurationError: there are several modules, and none was given as the one with this
                loss.
        """
        # With one engine there is no doubt whose loss it is; one for inference alone is refused
        # below all the same.
        all_trained = (
            [one for one in self.engines if one.optimizer]
            if len(self.engines) > 1
            else self.engines
        )
        engine = all_trained[0] if len(all_trained) == 1 else self._engine_around(module)
        if engine is None or engine.optimizer is None:
            raise ConfigurationError(
                f"backward: {len(self.engines)} modules were set up, and one that was set up with "
                "an optimizer must be said to be this loss's: DeepSpeed has an engine for each. "
                "Call fabric.backward(loss, model=model)."
            )
        ends_window = self._knows_windows and not (manual or self._is_accumulating)
        engine.backward(loss, ends_window=ends_window, others=all_trained, **kwargs)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients accumulate; stages 2 and 3 exchange them all the
        same.
        """
        return set_within(self, "_is_accumulating", enabled)

    def scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        """All ranks. Multiply the gradients of the engine's next step; see
        `Strategy.scale_gradients`.
        """
        self._engine_of(optimizer).scale(factor)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Make the optimizer's next step clip, by the 2-norm; see
        `Strategy.clip_gradients`.

        Raises:
            UnsupportedError: by value, or by another norm.
        """
        if clipping.algorithm != "norm" or clipping.norm_type != 2:
            raise UnsupportedError(
                f"{type(self).__name__} clips gradients by their 2-norm only, inside DeepSpeed's "
                "own step. Use gradient_clip_algorithm='norm', or max_norm=... alone.",
                capability=Capability.CLIP_BY_VALUE,
            )
        norm = self._engine_of(optimizer).clip(clipping.value)
        if clipping.error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True."
            )
        return norm

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the engine, which skips a step with gradients that overflowed."""
        # The closure computes the gradients, which the engine then steps, or skips.
        if closure is not None:
            closure()
        updated = self._engine_of(optimizer).step()
        self.session.stepped(optimizer)
        return updated


def _without_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, so that it may run in inference mode: what is gathered there could never
    train.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return call
