"""Parameters, gradients and optimizer state in flat parts, one on each rank, by FairScale's
FullyShardedDataParallel.

https://fairscale.readthedocs.io/en/stable/api/nn/fsdp.html. New work uses `fsdp`, which torch
maintains.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from torch import nn

from core import Capability, ConfigurationError
from core.registry import require_package
from core.strategies import (
    LeftOutParameters,
    ParallelStrategy,
    refuse_sparse_layers,
    refuse_unlike_modules,
)
from core_fairscale import flat_parts, norms, refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from core import GradientClipping, Precision
    from core_fairscale.units import FlatUnits

_PRECISIONS = ("32-true", "bf16-mixed")


class FullyShardedFairScaleStrategy(ParallelStrategy):
    """FairScale 0.4.13's FullyShardedDataParallel, for programs that use it today: CUDA only. New
    work uses `fsdp`.

    Parameters keep their identities and names, and hold flat parts between steps.
    """

    def __init__(
        self,
        *given: Any,
        reshard_after_forward: bool = True,
        disable_reshard_on_root: bool = True,
        flatten_parameters: Literal[False] = False,
        bucket_cap_mb: int = 25,
        clear_autocast_cache: bool = False,
        force_input_to_fp32: bool = False,
        gradient_predivide_factor: float | None = None,
        min_num_params: int | None = None,
        **options: Any,
    ) -> None:
        """Options of FairScale's wrapper, by its own names, and of every parallel strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            reshard_after_forward: free a unit's parameters after its forward, and gather them again
                for backward.
            disable_reshard_on_root: keep those of the outermost unit until backward all the same,
                which needs them at once.
            flatten_parameters: False, while FairScale's default is True: one flat parameter would
                take the place of those that the optimizer and its groups have, and of their names.
            bucket_cap_mb: size of the buckets in which gradients are reduced, in MB; 0 for none.
            clear_autocast_cache: forget weights that autocast has converted, whenever a unit has
                ended its forward.
            force_input_to_fp32: convert a unit's float16 inputs to float32.
            gradient_predivide_factor: divide gradients by it before they are added up, and by the
                rest afterwards; None takes about the square root of the number of ranks.
            min_num_params: a layer with so many parameters is a unit of its own, gathered and freed
                as a whole, by FairScale's `default_auto_wrap_policy`; None makes one unit of all.
            options: of `ParallelStrategy` (`start_method`, `process_group_backend`, `timeout`,
                ...).

        Raises:
            ConfigurationError: an unknown option, one that core decides, or a value that can't be
                had.
        """
        refusals.refuse_options(options)
        super().__init__(*given, **options)
        if flatten_parameters:
            raise ConfigurationError(
                "flatten_parameters=True puts one flat parameter in the place of the model's own, "
                "which optimizers, their groups and checkpoints know by name. Leave it out: "
                "parameters are cut one by one."
            )
        if min_num_params is not None and min_num_params < 1:
            raise ConfigurationError(
                f"min_num_params={min_num_params}: expected a number from 1, or None."
            )
        self.min_num_params = min_num_params
        self.settings = {
            "reshard_after_forward": reshard_after_forward,
            "disable_reshard_on_root": disable_reshard_on_root,
            "flatten_parameters": False,
            "bucket_cap_mb": bucket_cap_mb,
            "clear_autocast_cache": clear_autocast_cache,
            "force_input_to_fp32": force_input_to_fp32,
            "gradient_predivide_factor": gradient_predivide_factor,
        }
        self._units: list[FlatUnits] = []
        self._left_out = LeftOutParameters(self)
        self._reduce_group: Any = None
        self._buffers_differ = False

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, but for backwards within a step and for
        inference mode.

        FairScale hooks what a step returns, and keeps the memory of what it gathers. Every backward
        reduces gradients, those of an accumulation window too: without that, one that the window's
        last backward leaves out would be lost.
        """
        left = super().capabilities & ~(Capability.MANUAL_OPTIMIZATION | Capability.INFERENCE_MODE)
        return left | Capability.OWNS_GRADIENTS

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. All have alike what isn't cut: no parameter."""
        return None if isinstance(tensor, nn.Parameter) else ()

    def configure_precision(self, name: str) -> Precision | None:
        """float32, or autocast to bfloat16 over it. Main process.

        Raises:
            ConfigurationError: another one.
        """
        if name not in _PRECISIONS:
            raise ConfigurationError(
                f"precision={name!r}: under {type(self).__name__} parameters are in float32, and "
                "each rank sees its part of the gradients, so that it alone would see an overflow "
                "of float16. Use '32-true' or 'bf16-mixed'; or strategy='fsdp'."
            )
        return super().configure_precision(name)

    def check(self) -> None:
        """Refuse to begin without CUDA, or without FairScale.

        Raises:
            ConfigurationError: with what to use.
        """
        self.check_device(self.parallel_devices[0].type)
        require_package("fairscale", user=type(self).__name__, install="fairscale==0.4.13")
        super().check()

    def check_device(self, device_type: str) -> None:
        """Main process. Refuse a kind of device that FairScale's FSDP doesn't run on.

        Raises:
            ConfigurationError: it isn't CUDA.
        """
        if device_type != "cuda":
            raise ConfigurationError(
                "strategy='fsdp_fairscale' runs on CUDA GPUs only, and this run is on "
                f"{device_type!r}: FairScale's FullyShardedDataParallel needs CUDA's streams. Use "
                "strategy='fsdp', torch's own, which runs here and is what new work uses; its "
                "checkpoints and those of 'fsdp_fairscale' are the same."
            )

    # module and optimizers ------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move a module, give all ranks the weights of rank 0, and cut them.

        Raises:
            ConfigurationError: a module that FairScale would train wrongly.
            ModuleError: the ranks have built different modules.
        """
        refuse_unlike_modules(self, module)
        super().setup_module(module)
        refuse_sparse_layers(self, module)
        refusals.refuse_cut_module(module, in_units=self.min_num_params is not None)
        self._share([*module.parameters(), *module.buffers()])
        if any(True for _ in module.parameters()):
            self.model = self._cut(module).root
        return self.model

    def _cut(self, module: nn.Module) -> FlatUnits:
        from core_fairscale.units import FlatUnits

        # Its deprecated calls of torch: in forwards and backwards, where no context could be around
        # them.
        warnings.filterwarnings(
            "ignore", "TypedStorage is deprecated", UserWarning, module="fairscale"
        )
        warnings.filterwarnings(
            "ignore", "`torch.distributed._(all_gather|reduce_scatter)_base`", FutureWarning
        )
        if self._reduce_group is None:
            self._reduce_group = dist.new_group(timeout=self._group_timeout)
        groups = {
            "process_group": dist.group.WORLD,
            "process_group_reduce_scatter": self._reduce_group,
        }
        device = {"compute_device": self.root_device}
        units = FlatUnits(
            module, min_num_params=self.min_num_params, **self.settings, **groups, **device
        )
        self._units.append(units)
        return units

    def _share(self, tensors: Iterable[Tensor]) -> None:
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Use an optimizer as it is: its parameters are the user's own, in flat parts by
        now.

        Raises:
            ConfigurationError: it can't step flat parts.
        """
        refusals.refuse_whole_tensors(optimizer)
        self.parameter_names(optimizer)  # complains of a parameter that it doesn't know
        return super().setup_optimizer(optimizer)

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. Any method runs within the forward of FairScale's wrapper."""
        handle = self.session.handle_of(module)
        units = self._units_of(handle.wrapped)
        if units is None:
            return super().step_callable(name, module)
        return units.routed(
            name, handle.user_callable(name) if handle.compiler is not None else None
        )

    def _units_of(self, module: nn.Module) -> FlatUnits | None:
        return next(
            (units for units in self._units if module is units.root or module is units.module), None
        )

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, after which each parameter has its part of the averaged gradient.

        Raises:
            ModuleError: the loss leaves out parameters on this rank that it depends on elsewhere,
                or a whole unit.
        """
        concerned = [units for units in self._units if module is None or module is units.root]
        if loss.requires_grad:
            loss.register_hook(partial(self._check_graph, concerned))
        self._buffers_differ = True
        for units in concerned:
            units.set_gradients_aside()
        super().backward(loss, module, manual=manual, **kwargs)
        self._let_go()

    def _check_graph(self, concerned: list[FlatUnits], gradient: Tensor) -> None:
        names = [name for units in concerned for name in units.left_out()]
        if self.world_size > 1:
            self._left_out.check(names)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer over flat parts; what is gathered of the old weights is let
        go.
        """
        updated = super().optimizer_step(optimizer, closure)
        self._let_go()
        return updated

    def _let_go(self) -> None:
        for units in self._units:
            units.let_go()

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip, by the norm of the whole gradients; see `Strategy.clip_gradients`."""
        if clipping.algorithm != "norm":
            return super().clip_gradients(module, optimizer, clipping)
        return norms.clip(self, optimizer, clipping)

    def synchronize_model(self) -> None:
        """All ranks. Copy the buffers of rank 0."""
        super().synchronize_model()
        if self._buffers_differ:
            self._buffers_differ = False
            self._share(
                buffer for handle in self.session.handles for buffer in handle.module.buffers()
            )

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names, whole on rank 0; of layout `"sharded"` whole
        on all.
        """
        units = self._units_of(module)
        if units is None:
            return super().get_module_state_dict(module, layout=layout)
        with units.whole(keeps_changes=False):
            state = super().get_module_state_dict(module, layout=layout)
            if not self._keeps(layout):
                return {}
            copies: dict[int, Tensor] = {}  # a tensor with two names is one
            for name, value in state.items():
                state[name] = copies.setdefault(value.data_ptr(), value.detach().cpu().clone())
        return state

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore a whole state; each rank keeps its parts."""
        units = self._units_of(module)
        if units is None:
            super().load_module_state_dict(module, state, strict=strict)
            return
        with units.whole(keeps_changes=True):
            super().load_module_state_dict(module, state, strict=strict)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. State by parameter names, whole on rank 0; of layout `"sharded"` whole on
        all.
        """
        keeps = self._keeps(None)

        def convert(part: Tensor, parameter: Tensor) -> Tensor | None:
            whole = flat_parts.gather(part, parameter, self)
            return whole.cpu() if keeps else None

        state = super().get_optimizer_state_dict(optimizer)
        entries = flat_parts.convert_entries(state["state"], self._named(optimizer), convert)
        return {**state, "state": entries} if keeps else {}

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore a whole state; each rank takes its parts."""
        named = self._named(optimizer)
        parameters = {**named, **dict(enumerate(named.values()))}
        known = {key: entry for key, entry in state["state"].items() if key in parameters}
        convert = partial(flat_parts.own_part, strategy=self)
        entries = {**state["state"], **flat_parts.convert_entries(known, parameters, convert)}
        super().load_optimizer_state_dict(optimizer, {**state, "state": entries})

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. None: a saved state is read whole, and each rank takes its parts."""
        return None

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names that the optimizer's parameters have in the user's own modules, without those of
        units.
        """
        with ExitStack() as stack:
            for units in self._units:
                stack.enter_context(units.own_layers())
            return super().parameter_names(optimizer)

    def _named(self, optimizer: Optimizer) -> dict[Any, Tensor]:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        return dict(zip(self.parameter_names(optimizer), parameters, strict=True))

    def _keeps(self, layout: str | None) -> bool:
        return (layout or self.checkpoint_io.layout) == "sharded" or self.is_global_zero

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Give modules their whole weights back, if ranks end together; else
        they stay cut.
        """
        units, self._units = self._units, []
        for each in units:
            each.close(is_whole=self.session.ends_together)
        if units:
            for optimizer in self.optimizers:
                optimizer.state.clear()  # flat parts, which fit nothing any more
        self._left_out.forget()
        self._buffers_differ = False
        super().release()

    def leave_group(self) -> None:
        """All ranks. Leave the groups that were made here."""
        self._reduce_group = None
        super().leave_group()
