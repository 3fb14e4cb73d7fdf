"""DeepSpeed's engine around one module: gradients, and the step of its optimizer."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core.strategies import MethodRouter
from core_deepspeed.layout_guard import LayoutGuard
from core_deepspeed.left_out import refuse_frozen
from core_deepspeed.state import EngineState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core_deepspeed.left_out import GradientsOfAll
    from core_deepspeed.whole_engine import WholeEngineState


_ON_MODULES = frozenset(
    {
        "pre_bwd_fn",
        "post_bwd_fn",
        "applied_pre_backward_ref_cnt",
        "all_parameters",
        "to_empty",
        "_original_parameters",
        "_external_params",
        "_ds_child_entered",
    }
)
"""Attributes that stage 3 leaves on modules, besides those with names that begin with `ds_`."""

_ASKED_AT_EACH_STEP = ("_z3_leaf", "_deepcompile_z3_eager_fallback")
"""Attributes that DeepSpeed looks for in the router, which would look for them in the module, and
so on.
"""


class ZeroEngine:
    """One module in DeepSpeed's engine, and the optimizer of it.

    DeepSpeed counts batches to know when a window of accumulation ends. Here it is given, when that
    is known at backward; else gradients stay as backward has left them until they are needed, to
    clip or to step.

    Attributes:
        module: the user's own.
        given_groups: parameters of the optimizer, group by group, when it was given.
        group_of: number of the group of each that is trained.
        optimizer: that DeepSpeed steps; None for inference.
        wrapped: DeepSpeed's engine, around a `MethodRouter`.
        zero: DeepSpeed's own optimizer around it, or the same.
        gradients: looks for parameters without one, where a rank can't leave some out alone.
        stepped: names of the parameters that an optimizer made by DeepSpeed steps, whatever is
            frozen later.
    """

    gradients: GradientsOfAll | None = None
    stepped: Mapping[Any, str] = MappingProxyType({})

    def __init__(
        self, deepspeed: Any, module: nn.Module, optimizer: Optimizer | None, config: dict[str, Any]
    ) -> None:
        """All ranks. Make the engine, which converts the module and cuts what its stage cuts."""
        self.module = module
        self.optimizer = optimizer
        self._deepspeed, self._sets_checkpointing = (
            deepspeed,
            any(config.get("activation_checkpointing", {}).values()),
        )
        if self._sets_checkpointing:
            deepspeed.checkpointing.configure(None, deepspeed_config=config)
        self.given_groups = (
            [list(group["params"]) for group in optimizer.param_groups if group["params"]]
            if optimizer
            else []
        )
        self.group_of = {
            parameter: number
            for number, group in enumerate(self.given_groups)
            for parameter in group
            if parameter.requires_grad
        }
        # DeepSpeed puts attributes on parameters; `close` takes away what isn't among these.
        self._attributes = {
            parameter: _own_attributes(parameter) for parameter in module.parameters()
        }
        self.router = MethodRouter(module)
        for name in _ASKED_AT_EACH_STEP:
            vars(self.router)[name] = getattr(module, name, False)
        self.wrapped, self.zero, _, _ = deepspeed.initialize(
            model=self.router, optimizer=optimizer, config=config, dist_init_required=False
        )
        vars(self.router)["named_modules"] = _without_router(module)
        if not self.wrapped.torch_autocast_enabled():
            # On a GPU a forward would leave the autocast that is around it, and inputs would stay
            # in float32.
            device_type = self.wrapped.device.type
            vars(self.wrapped)["torch_autocast_enabled"] = torch.is_autocast_enabled
            vars(self.wrapped)["torch_autocast_dtype"] = partial(
                torch.get_autocast_dtype, device_type
            )
        self.stage = int(self.wrapped.zero_optimization_stage())
        self._max_norm = self.wrapped.gradient_clipping()
        self._num_backwards = 0
        self._is_complete = False
        if optimizer is None:
            # There is nothing to begin, and DeepSpeed would refuse that another's loss goes
            # through.
            vars(self.wrapped)["_backward_prologue"] = _do_nothing
        else:
            # Gradients are the engine's: to drop those of the flat parameters would take its
            # buffers away.
            vars(optimizer)["zero_grad"] = self.drop_gradients
            self._layout_guard = self._guard_layout(optimizer)

    def _guard_layout(self, optimizer: Optimizer) -> LayoutGuard | None:
        held = set(chain(*self.groups))
        named = ((name, one) for name, one in self.module.named_parameters() if one in held)
        return LayoutGuard(optimizer, named)

    @property
    def groups(self) -> list[list[Any]]:
        """Parameters of the optimizer, group by group, as the user has them: it may hold others
        from now on.
        """
        return self.given_groups

    def state(self, rank: int) -> EngineState | WholeEngineState:
        """The engine's part of the state at this moment."""
        return EngineState(self, rank)

    def backward(
        self, loss: Tensor, *, ends_window: bool, others: Collection[ZeroEngine] = (), **kwargs: Any
    ) -> None:
        """All ranks. Compute and accumulate gradients, also those of other engines that the loss
        goes through.

        Args:
            loss: of this engine.
            ends_window: the step is going to follow.
            others: all engines of the run that train.
            kwargs: of DeepSpeed's `backward`.

        Raises:
            ConfigurationError: another engine's gradients would be scaled otherwise than its own.
        """
        # A loss may go through several engines, such as a generator's through the discriminator.
        # Each hears that a backward begins, and how it ended for it.
        others = [engine for engine in others if engine is not self] if len(others) > 1 else ()
        for engine in others:
            engine._begin_backward(ends_window=False)
            # else a hook ends it, where one forward was run only
            engine.wrapped._running_engine_backward = True
        self._begin_backward(ends_window=ends_window)
        refuse_frozen(self.stepped)
        if self.gradients is not None:
            self.gradients.check_in_backward(loss, begins_window=not self._num_backwards)
        self.wrapped.backward(loss, scale_wrt_gas=False, **kwargs)
        self._leave_backward()
        self._num_backwards += 1
        self._is_complete = ends_window
        for engine in others:
            engine._end_backward_of(self)

    def _begin_backward(self, *, ends_window: bool) -> None:
        self.wrapped.set_gradient_accumulation_boundary(ends_window)
        # a second backward after one forward adds to the first
        self.zero.clear_backward_seen_flag()

    def _end_backward_of(self, other: ZeroEngine) -> None:
        """Keep gradients that the loss of another engine has brought, if it has."""
        self.wrapped._running_engine_backward = False
        if self.zero._hooks_fired_this_backward:
            self._check_scale(other)
            self.wrapped._backward_epilogue()
            self._num_backwards += 1
            self._is_complete = False
        elif self.zero._backward_hook_state.backward_active_depth:
            self.zero.backward_epilogue()
        self._leave_backward()

    def _leave_backward(self) -> None:
        """Each forward that a loss goes through has begun a backward, of which DeepSpeed ends
        one.
        """
        while self.zero._backward_hook_state.backward_active_depth:
            self.zero.exit_backward()

    def _check_scale(self, other: ZeroEngine) -> None:
        if self.zero.loss_scale != other.zero.loss_scale:
            raise ConfigurationError(
                f"The loss of a {type(other.module).__name__} goes through a "
                f"{type(self.module).__name__} with an optimizer of its own, which would get "
                f"gradients scaled by {other.zero.loss_scale:g} instead of "
                f"{self.zero.loss_scale:g}. Call requires_grad_(False) on the latter for that loss."
            )

    def complete(self) -> None:
        """All ranks. Exchange gradients, as far as backward hasn't."""
        if self._is_complete or not self._num_backwards:
            return
        self.wrapped.set_gradient_accumulation_boundary(True)
        if self.stage < 2:
            self.wrapped.allreduce_gradients()
        else:
            self.zero.finalize_gradient_accumulation_boundary()
        self._is_complete = True

    def scale(self, factor: float) -> None:
        """All ranks. Multiply the gradients of the next step, wherever they lie: it divides them by
        a loss scale.
        """
        self.zero.custom_loss_scaler, self.zero.external_loss_scale = (
            True,
            self.zero.loss_scale / factor,
        )

    def _unscale(self) -> None:
        """Restore the engine's own loss scale."""
        self.zero.custom_loss_scaler = False
        self.zero.external_loss_scale = None

    def clip(self, max_norm: float) -> Tensor:
        """All ranks. Make the next step clip; the norm before that."""
        self.complete()
        self._set_max_norm(max_norm)
        return self._norm()

    def _set_max_norm(self, max_norm: float) -> None:
        self.zero.clip_grad = max_norm

    def _norm(self) -> Tensor:
        if self.stage < 3:
            norm = self.zero.scaled_global_norm()
        else:
            norm = torch.linalg.vector_norm(torch.stack(self.zero._get_norm_groups()))
        # DeepSpeed says -1 where a gradient isn't finite.
        return torch.where(norm < 0, torch.inf, norm / self.zero.loss_scale).float()

    def step(self) -> bool:
        """All ranks. Step the optimizer; whether parameters were updated."""
        if not self._num_backwards:
            return False
        self.complete()
        self.wrapped.step()
        self._set_max_norm(self._max_norm)
        self._unscale()
        self._num_backwards = 0
        self._is_complete = False
        return bool(self.wrapped.was_step_applied())

    def drop_gradients(self, set_to_none: bool = True) -> None:
        """All ranks. Forget what backward has accumulated since the last step."""
        if not self._num_backwards:
            return
        self._num_backwards = 0
        self._is_complete = False
        self._unscale()
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        zero = self.zero
        zero.zero_grad()
        if self.stage == 3:
            return
        zero.micro_step_id = -1
        zero._release_preflattened_grad_buffers()
        if zero.cpu_offload:
            zero.reset_cpu_buffers()
        for group in range(len(zero.bit16_groups)):
            zero.averaged_gradients[group] = zero.all_grad_tensors[group] = None

    def close(self, values: Mapping[Any, Tensor]) -> None:
        """Idempotent. Take the engine away from module and optimizer.

        Args:
            values: for parameters that were cut; the others stay as they are.
        """
        if self.optimizer is not None:
            vars(self.optimizer).pop("zero_grad", None)
            if self._layout_guard is not None:
                self._layout_guard.allow()
        if self._sets_checkpointing:
            # it is the process's, and the next run says its own
            self._deepspeed.checkpointing.configure(None)
        # A mark of the process too, by which the next engine would reduce in another format than
        # its config says.
        self._deepspeed.runtime.torch_autocast.TORCH_AUTOCAST_INITIALIZED = False
        # Looked up before `destroy`, after which the swappers that know them may be gone.
        swap_folders = self._swap_folders()
        self.wrapped.destroy()
        for folder in swap_folders:
            _remove(folder)
        for parameter, attributes in self._attributes.items():
            for name in vars(parameter).keys() - attributes:
                delattr(parameter, name)
            if parameter in values:
                parameter.data = values[parameter]
        for part in self.module.modules():
            # stage 3 has put one that gathers in its place
            part._parameters = dict(part._parameters)
            # With what belongs to this engine, the next one of the same module would gather by it,
            # or not at all.
            for name in [
                name for name in vars(part) if name in _ON_MODULES or name.startswith("ds_")
            ]:
                del vars(part)[name]
        self._attributes = {}
        # At stage 3 they are in cycles that Python doesn't collect, with memory of the device and
        # groups of processes.
        for holder in (getattr(self.zero, "parameter_offload", None), self.zero, self.wrapped):
            if holder is not None and holder is not self.optimizer:
                vars(holder).clear()

    def _swap_folders(self) -> set[Path]:
        """The folders with this rank's part of what is offloaded to a disk."""
        swappers = [getattr(self.zero, "optimizer_swapper", None)]
        swappers += [getattr(parameter, "nvme_swapper", None) for parameter in self._attributes]
        return {Path(swapper.swap_folder) for swapper in swappers if swapper is not None}


def _remove(folder: Path) -> None:
    """Delete a folder, and DeepSpeed's two around it when the last rank has left them: it leaves
    them all.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for around in (folder.parent, folder.parent.parent):
        with suppress(OSError):
            around.rmdir()


def _do_nothing() -> None:
    pass


def _own_attributes(parameter: Any) -> set[str]:
    """Names of what DeepSpeed hasn't put there; what was cut while it was built has DeepSpeed's
    already.
    """
    return {
        name
        for name, value in vars(parameter).items()
        if not name.startswith("ds_")
        and not str(getattr(value, "__module__", "")).startswith("deepspeed.")
    }


def _without_router(module: nn.Module) -> Callable[..., Any]:
    """A router's `named_modules` without itself. Stage 3 goes through all modules several times a
    step.
    """

    def named_modules(memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Any:
        return module.named_modules(
            memo, f"{prefix}.module" if prefix else "module", remove_duplicate
        )

    return named_modules
