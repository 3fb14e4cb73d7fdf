"""Optimizers of shards, and the steps of training: parameters are gathered, gradients reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule

from core import ConfigurationError
from core.strategies import needs_whole_matrices
from core_fsdp import forward, gradients, whole_matrices, wrapping
from core_fsdp.first_draws import Lacking, refuse_lacking
from core_fsdp.same_batches import EVERY
from core_fsdp.sharded_states import ShardedStates

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import GradientClipping
    from core.session import ReplacedParameters
    from core_fsdp.left_out import LeftOutOfUnits


class ShardedSteps(ShardedStates):
    """Sets up optimizers over the shards of modules, and trains with them."""

    _replaced: ReplacedParameters
    _left_out: LeftOutOfUnits
    _lacking: list[Lacking]
    _num_backwards = 0

    # optimizers -----------------------------------------------------------------------------------

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Replace the optimizer's parameters by the shards, if it was made before there
        were any.

        Raises:
            ConfigurationError: it holds a parameter of no module that was set up, or flattens all
                of them.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                _not_in_shards(optimizer, "it makes one vector of all parameters")
            )
        if isinstance(optimizer, torch.optim.Adafactor):
            raise ConfigurationError(
                _not_in_shards(optimizer, "it looks at whole rows and columns")
            )
        for handle in self.session.handles:
            # an identity that was replaced may be that of another object by now
            handle.original_names.clear()
        self._replaced.rebind(optimizer)
        self.parameter_names(optimizer)  # complains of a parameter that it doesn't know
        if needs_whole_matrices(optimizer):
            whole_matrices.gather_in_steps(optimizer)
        parameters = gradients.parameters_of(optimizer)
        if len({getattr(one, "device_mesh", None) for one in parameters}) > 1:
            # One fused or foreach operation takes tensors of one mesh only.
            for group in optimizer.param_groups:
                group.update({name: False for name in ("foreach", "fused") if name in group})
        return optimizer

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. Any method runs as a forward of the module, with its parameters
        gathered.

        Raises:
            ModuleError: a parameter has a hook that no gradient comes to.
        """
        handle = self.session.handle_of(module)
        self._check_hooks(handle.module)
        method = handle.user_callable(name)
        if name != "forward" and isinstance(handle.module, FSDPModule):
            method = forward.as_forward_of(handle.module, name, method)
        return forward.without_inference_mode(method, wrapping.sharded_units(handle.module))

    def _check_hooks(self, module: nn.Module) -> None:
        if wrapping.is_sharded(module):
            wrapping.check_hooks(module, "register_hook")

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, which reduces gradients on its way; see `Strategy.backward`.

        Raises:
            ModuleError: the loss leaves out parameters on this rank that it depends on elsewhere,
                or is of some that weren't gathered; or a parameter has got a hook that no gradient
                comes to.
        """
        self._left_out.check_idle_units()
        try:
            super().backward(loss, module, manual=manual, **kwargs)
        except RuntimeError as error:
            if explained := forward.mixed_use(error):
                raise explained from error
            raise
        self._num_backwards += 1
        # the 1st, 2nd, 4th, 8th, ...
        if self._num_backwards.bit_count() == 1 or self._num_backwards % EVERY == 0:
            for handle in self.session.handles:
                self._check_hooks(handle.module)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay whole and local; the next backward outside
        reduces their sum.
        """
        if not enabled:
            return super().no_backward_sync(module, enabled)
        for optimizer in self.optimizers:
            if "zero_grad" not in vars(optimizer):
                units = [
                    unit
                    for handle in self.session.handles
                    for unit in wrapping.sharded_units(handle.module)
                ]
                gradients.clear_whole_ones(optimizer, units)
        return forward.no_sync(wrapping.sharded_units(self.session.handle_of(module).module))

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip over all shards and axes of the mesh; see `Strategy.clip_gradients`."""
        self.precision_plugin.unscale_gradients(optimizer)
        parameters = gradients.parameters_of(optimizer)
        if clipping.algorithm == "norm":
            return gradients.clip_by_norm(parameters, clipping)
        gradients.clip_by_value(parameters, clipping.value)
        return None

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer over its shards; what is gathered of the old weights is let
        go.

        Raises:
            ModuleError: a parameter that was built on meta has got no values.
        """
        refuse_lacking(self._lacking)
        try:
            updated = super().optimizer_step(optimizer, closure)
        except RuntimeError as error:
            if "Sharding propagation failed" not in str(error):
                raise
            reason = f"torch can't do one of its operations on them ({str(error).splitlines()[0]})"
            raise ConfigurationError(_not_in_shards(optimizer, reason)) from error
        self._reshard()
        return updated


def _not_in_shards(optimizer: Optimizer, reason: str) -> str:
    return (
        f"{type(optimizer).__name__} can't step parameters in shards: {reason}. Use an optimizer "
        "that works element by element, such as AdamW or SGD, or a strategy that keeps parameters "
        "whole, such as ddp."
    )
