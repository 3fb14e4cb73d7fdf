"""Steps of training by the Booster: it scales losses in fp16, clips in its own step, and updates
parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core import Capability, UnsupportedError
from core_colossalai.states import BoostedStates

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import GradientClipping


class BoostedSteps(BoostedStates):
    """Base of `ColossalAIStrategy`: trains what its Booster has set up."""

    _buffers_differ = False

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. A cut module runs all steps through Colossal-AI's model, which
        converts inputs.
        """
        handle = self.session.handle_of(module)
        if (
            self.engine is None
            or handle.wrapped is not self.engine.wrapped
            or self.engine.router is None
        ):
            return super().step_callable(name, module)
        replacement = handle.user_callable(name) if handle.compiler is not None else None
        routed: Callable[..., Any] = self.engine.router.route(
            handle.wrapped, name, replacement=replacement
        )
        return routed

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward by the Booster, which scales the loss in fp16; see
        `DDPStrategy.backward`.
        """
        if self.engine is None:
            super().backward(loss, module, manual=manual, **kwargs)
            return
        self._buffers_differ = True
        self.engine.backward(loss, **kwargs)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay local, with `torch_ddp`; ZeRO exchanges them
        all the same.
        """
        return super().no_backward_sync(module, enabled and self.replicates)

    def scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        """All ranks. Multiply the gradients of the next step; see `Strategy.scale_gradients`."""
        if self.engine is None:
            super().scale_gradients(optimizer, factor)
        else:
            self.engine.scale(factor)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip, with ZeRO by the 2-norm and in the next step; see
        `Strategy.clip_gradients`.

        Raises:
            UnsupportedError: ZeRO, by value or by another norm; or Gemini and hybrid, which clip by
                `max_norm` alone.
        """
        if self.engine is None:
            return super().clip_gradients(module, optimizer, clipping)
        if clipping.algorithm != "norm" or clipping.norm_type != 2:
            raise UnsupportedError(
                f"plugin={self.plugin!r} clips gradients by their 2-norm only, inside "
                "Colossal-AI's own step. Use gradient_clip_algorithm='norm', or max_norm=... "
                "alone.",
                capability=Capability.CLIP_BY_VALUE,
            )
        norm = self.engine.clip(clipping.value)
        if clipping.error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True."
            )
        return norm

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step; in fp16 a step with gradients that overflowed is left out."""
        if self.engine is None:
            return super().optimizer_step(optimizer, closure)
        if closure is not None:
            closure()
        return self.engine.step()

    def synchronize_model(self) -> None:
        """All ranks. Where DistributedDataParallel doesn't, take the buffers of rank 0."""
        super().synchronize_model()
        if self._buffers_differ:
            self._buffers_differ = False
            self._share(
                [buffer for handle in self.session.handles for buffer in handle.module.buffers()]
            )

    def _share(self, tensors: list[Tensor]) -> None:
        if self.world_size > 1:
            for tensor in tensors:
                held = tensor.detach().to(self.root_device)
                dist.broadcast(held, src=0)
                if held.device != tensor.device:
                    tensor.detach().copy_(held)
