"""The part that all strategies of XLA share: operations are noted, and computed as one graph where
it is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import Capability, ConfigurationError, Strategy
from core.data import make_transfer
from core.strategies import refuse_sparse_layers
from core_xla import library
from core_xla.device_loader import DeviceLoader, num_ahead_of
from core_xla.host_copies import on_host
from core_xla.metrics import defaults_on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from torch import nn
    from torch.optim import Optimizer

    from core import Precision, Stage, StepOutput, TrainingStep

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_PRECISIONS = ("32-true", "64-true", "bf16-true", "16-true", "bf16-mixed")


class LazyExecution(Strategy):
    """Cuts the graph once a step: after each batch in a Trainer, after each step of an optimizer in
    a loop by hand.

    Mixed into a strategy, before its other base. Between two cuts nothing is computed, and reading
    a value cuts too.

    Attributes:
        prefetch_batches: batches that are on their way to the device before the step asks for them.
    """

    device_types: tuple[str, ...] = ("xla",)
    prefetch_batches: int = 2
    _is_in_step: bool = False

    def mark_step(self) -> None:
        """This process. Cut the graph here: what was noted since the last cut is compiled, once,
        and computed.

        A Trainer needs no call of it. In a loop by hand, call it after what is neither a step of an
        optimizer nor read: after each batch that is only evaluated or accumulated.
        """
        library.torch_xla().sync()

    def configure_precision(self, name: str) -> Precision | None:
        """The generic ones serve. Main process.

        Raises:
            ConfigurationError: a format that scales the loss: its scale would be read from the
                device in every step.
        """
        if name == "16-mixed":
            raise ConfigurationError(
                f"precision={name!r} scales the loss, and asks the device in each step whether "
                f"gradients overflowed. {type(self).__name__} computes in "
                f"{', '.join(map(repr, _PRECISIONS))}: use 'bf16-mixed'."
            )
        return super().configure_precision(name)

    @property
    def capabilities(self) -> Capability:
        """Without inference mode: torch_xla counts the versions of tensors, and those of that mode
        have none.
        """
        return super().capabilities & ~Capability.INFERENCE_MODE

    def module_to_device(self, module: nn.Module) -> None:
        """All ranks. Move parameters and buffers to the device; a parameter stays the same object,
        with its hooks.

        torch would make new ones: an optimizer would keep the old ones, and weights that are tied
        would part.

        Raises:
            ModuleError: a layer gives sparse gradients, which torch_xla doesn't add.
        """
        refuse_sparse_layers(self, module)
        hooks = [
            (one, name, getattr(one, name, None)) for one in module.parameters() for name in _HOOKS
        ]
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with defaults_on_host(module):
                super().module_to_device(module)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)
        for parameter, name, own in hooks:
            if own:
                setattr(parameter, name, own)  # the same dict, from which their handles remove them

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. The optimizer as it is.

        Raises:
            ConfigurationError: it is fused, by a kernel that these devices don't have.
        """
        if any(group.get("fused") for group in optimizer.param_groups):
            raise ConfigurationError(
                f"{type(optimizer).__name__}(fused=True): torch has no such kernel for devices of "
                "XLA, which fuses the whole step by itself. Leave fused out."
            )
        return super().setup_optimizer(optimizer)

    # steps ----------------------------------------------------------------------------------------

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """All ranks, each batch. One step, and one graph of it: also of several backwards and
        updates.
        """
        self._is_in_step = True
        try:
            output = super().run_training_step(batch, batch_idx, step)
        finally:
            self._is_in_step = False
        self.mark_step()
        return output

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer, and cut the graph there in a loop by hand."""
        updated = super().optimizer_step(optimizer, closure)
        if not self._is_in_step:
            self.mark_step()
        return updated

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. The graph is cut after each batch of evaluation too."""
        call = super().step_callable(name, module)
        # A training step is cut by `run_training_step`, and a forward is a part of what its caller
        # cuts.
        if name in ("training_step", "forward"):
            return call

        def call_and_cut(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            self.mark_step()
            return output

        return call_and_cut

    # data -----------------------------------------------------------------------------------------

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All ranks. Batches of a loader with workers are placed ahead of time."""
        num_ahead = num_ahead_of(loader, self.prefetch_batches)
        return (
            DeviceLoader(loader, self.place_batch, num_ahead)
            if num_ahead or self._always_places
            else loader
        )

    _always_places: bool = False

    def place_batch(self, batch: Any) -> Any:
        """This process. Bring a batch to the device, of any structure that a loader may give. It
        doesn't wait.
        """
        move = make_transfer(self.root_device)
        return move(batch) if move is not None else batch

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. The module's whole state, on the host."""
        state: dict[str, Any] = on_host(super().get_module_state_dict(module, layout=layout))
        return state

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's whole state by parameter names, on the host."""
        state: dict[str, Any] = on_host(super().get_optimizer_state_dict(optimizer))
        return state

    def optimizer_targets(self, optimizer: Optimizer, described: Mapping[str, Any]) -> None:
        """All ranks. None: a saved state is read whole on the host, and goes to the device at
        once.
        """
        return

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore what `get_module_state_dict` returned, in place."""
        super().load_module_state_dict(module, state, strict=strict)
        self.mark_step()

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore what `get_optimizer_state_dict` returned, in place."""
        super().load_optimizer_state_dict(optimizer, state)
        self.mark_step()
