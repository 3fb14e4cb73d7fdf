"""One replica of the model in every process; gradients are averaged while backward runs.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.nn.parallel import DistributedDataParallel

from core import Capability, ConfigurationError
from core.strategies import (
    FrozenParameters,
    MethodRouter,
    refuse_unlike_modules,
    with_options_of,
)
from core_ddp.hook_state import HookState
from core_ddp.hooks import late_hooks, refuse_late_hooks
from core_ddp.late import GRADIENTS_STAY, WrappedParameters, refuse_difference
from core_ddp.local_sgd import LocalSGD
from core_ddp.sparse import copy_sparse_gradients
from core_ddp.torch_wrapper import (
    keep_ignored,
    let_python_hold_the_group_longest,
    manual_step,
)
from core_ddp.unused import explain_unused, use_up_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from contextlib import AbstractContextManager

    from torch.utils.hooks import RemovableHandle

    from core import ModuleHandle, StepOutput, TrainingStep

_NO_OPTIONS = frozenset({"module", "process_group"})
_DDP_OPTIONS = frozenset(inspect.signature(DistributedDataParallel).parameters) - _NO_OPTIONS
_SENDS_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")  # the second until torch 2.12
# Steps whose backward needs gradients averaged; the others run without the wrapper, so that ranks
# may differ in length.
_WRAPPED = frozenset({"training_step", "forward"})


class DDPStrategy(LocalSGD):
    """Data parallelism with torch's DistributedDataParallel, on one node or several."""

    interactive_alias: str | None = "ddp_notebook"
    _check_gradients: Callable[..., Any] | None = None  # of the stage that runs

    @with_options_of(DistributedDataParallel, leave_out=_NO_OPTIONS)
    def __init__(
        self,
        *given: Any,
        ddp_comm_state: object | None = None,
        ddp_comm_hook: Callable[..., Any] | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        find_unused_parameters: bool | None = None,
        **options: Any,
    ) -> None:
        """Options of the strategy, of torch's DistributedDataParallel, and of every parallel
        strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            ddp_comm_state: state of the communication hook.
            ddp_comm_hook: replaces the all-reduce of gradients, such as
                `torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook`.
            ddp_comm_wrapper: wraps the hook, such as `fp16_compress_wrapper`.
            model_averaging_period: average the weights every so many optimizer steps. Needs the
                post-local SGD hook and its `PostLocalSGDState` (Lin et al., "Don't Use Large
                Mini-Batches, Use Local SGD", ICLR 2020).
            find_unused_parameters: some parameters get no gradient in some steps. None is yes with
                manual optimization, where each backward uses a part of them, and no otherwise.
            options: of DistributedDataParallel (`static_graph`, `gradient_as_bucket_view`,
                `bucket_cap_mb`, ...) and of `ParallelStrategy` (`start_method`,
                `process_group_backend`, `timeout`, `parallel_devices`, ...).

        Raises:
            ConfigurationError: an unknown option, or options that contradict each other.
        """
        ddp_options = {name: options.pop(name) for name in _DDP_OPTIONS & options.keys()}
        super().__init__(*given, **options)
        if model_averaging_period is not None and not isinstance(ddp_comm_state, PostLocalSGDState):
            raise ConfigurationError(
                f"model_averaging_period={model_averaging_period} averages weights that have "
                "drifted apart, and without the post-local SGD hook gradients are averaged in "
                "every step. Pass ddp_comm_state=PostLocalSGDState(...) and "
                "ddp_comm_hook=post_localSGD_hook too."
            )
        self.ddp_options = ddp_options
        self.find_unused_parameters = find_unused_parameters
        self._comm_hook = (
            ddp_comm_hook if ddp_comm_wrapper is None else _wrap(ddp_comm_hook, ddp_comm_wrapper)
        )
        self._comm_state = ddp_comm_state
        self._hook_state = HookState(ddp_comm_state)
        self._averaging_period = model_averaging_period
        self._frozen = FrozenParameters(GRADIENTS_STAY)
        self._wrapped: dict[nn.Module, WrappedParameters] = {}
        self._sparse_hooks: dict[Tensor, RemovableHandle] = {}
        self._own_hooks: set[int] = set()
        self._is_rewrapped = False
        self._leaves_some_out = False

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, and accumulation without communication.

        Ranks have the same weights unless a hook, a wrapper or a left-out parameter lets them drift
        apart. PowerSGD keeps tensors by the numbers of one wrapper's buckets, and doesn't go on bit
        for bit: see `core_ddp.hook_state`.
        """
        own = super().capabilities | Capability.NO_SYNC
        if self.ddp_options.get("static_graph"):
            own &= ~Capability.NO_SYNC
        if isinstance(self._comm_state, PostLocalSGDState):  # ranks step by their own gradients
            own = own & ~Capability.WEIGHTED_LOSSES | Capability.OWNS_GRADIENTS
        if self._averaging_period is not None:  # steps are counted, those of one optimizer
            own &= ~(Capability.SEVERAL_OPTIMIZERS | Capability.SEVERAL_MODULES)
        if self._hook_state.is_by_bucket:
            own &= ~(Capability.BIT_EXACT_RESUME | Capability.SEVERAL_MODULES)
        return (
            own | Capability.REPLICATED_PARAMETERS
            if self._averages_alone and not self._leaves_some_out
            else own
        )

    @property
    def _averages_alone(self) -> bool:
        return self._comm_hook is None and type(self).configure_ddp is DDPStrategy.configure_ddp

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. All have alike what DDP averages and sends, and nothing that is left out of
        it.

        Raises:
            ModuleError: a parameter got no gradient, so that DDP hasn't averaged.
        """
        if not self._averages_alone:
            return None
        if module is None:
            self._check_finished()
            return ()
        wrapper: Any = self.session.handle_of(module).wrapped
        sends = all(self.ddp_options.get(name) is not False for name in _SENDS_BUFFERS)
        is_left_out = wrapper is module or f"module.{name}" in wrapper.parameters_to_ignore
        is_alike = (sends or isinstance(tensor, nn.Parameter)) and not is_left_out
        return () if is_alike else None

    def _check_finished(self) -> None:
        """Raise for parameters without a gradient, as DDP does in the next forward: before ranks
        are seen to differ.
        """
        for handle in self.session.handles:
            wrapper = handle.wrapped
            if isinstance(wrapper, DistributedDataParallel) and wrapper.require_backward_grad_sync:
                explain_unused(wrapper._check_reducer_finalized, self._wrapped.get(handle.module))()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert, move and wrap the module; without trainable parameters there is
        nothing to wrap.

        Raises:
            ModuleError: the ranks have built different modules, or a parameter has a hook that
                ranks can't share.
        """
        if self.world_size > 1:
            refuse_late_hooks(module)
        refuse_unlike_modules(
            self, module, getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        )
        super().setup_module(module)
        self._wrap(module)
        return self.model

    def _wrap(self, module: nn.Module) -> None:
        if any(parameter.requires_grad for parameter in module.parameters()):
            # Around the module the router, and around that DDP, which then runs any method as its
            # forward.
            self.model = MethodRouter(module)
            keep_ignored(module, self.model)
            self.configure_ddp()
            let_python_hold_the_group_longest(self.model)
        # A wrapper of the user's, or parameters that DDP ignores, may let weights drift apart.
        is_whole = (
            isinstance(self.model, DistributedDataParallel) and not self.model.parameters_to_ignore
        )
        self._leaves_some_out = self._leaves_some_out or not is_whole
        copy_sparse_gradients(module, self._sparse_hooks)
        parts = self.model.modules()
        if self.model is module or any(isinstance(one, DistributedDataParallel) for one in parts):
            ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
            self._frozen.watch(
                (name, own) for name, own in module.named_parameters() if name not in ignored
            )
            self._wrapped[module] = WrappedParameters(module)
        self._own_hooks |= {id(hook) for _, hook in late_hooks(module)}

    def refresh_modules(self) -> bool:
        """All ranks, when an epoch begins. Wrap those modules anew of which a parameter was frozen,
        unfrozen, replaced.

        Raises:
            ConfigurationError: it was so on some ranks only.
        """
        watched = [one for one in self.session.handles if one.module in self._wrapped]
        changes = [
            (one, changed) for one in watched if (changed := self._wrapped[one.module].changes())
        ]
        refuse_difference([name for _, changed in changes for name in changed], self.reduce)
        if self._comm_hook is not None:
            # its state may be that of the old buckets; a gradient will be refused, or be waited for
            return False
        for handle, _ in changes:
            for parameter in self._wrapped[handle.module].new_parameters():
                torch.distributed.broadcast(parameter.detach(), src=0)
            self._rewrap(handle)
        self.model = self.session.handles[-1].wrapped
        return bool(changes)

    def _rewrap(self, handle: ModuleHandle) -> None:
        self.model = handle.module
        self._is_rewrapped = True
        try:
            self._wrap(handle.module)
        finally:
            self._is_rewrapped = False
        handle.wrapped = self.model

    def configure_ddp(self) -> None:
        """All ranks. Wrap `self.model`. Override to use a wrapper of your own."""
        manual = not getattr(self.model, "automatic_optimization", True)
        find_unused = manual if self.find_unused_parameters is None else self.find_unused_parameters
        if manual and self.find_unused_parameters is None:
            use_up_advice(self.root_device)
        self.model = DistributedDataParallel(
            self.model,
            **{
                "device_ids": self.ddp_device_ids(),
                "find_unused_parameters": find_unused,
                "init_sync": not self._is_rewrapped,  # buffers of ranks may differ by now
                **self.ddp_options,
            },
        )
        if self._comm_hook is not None:
            hook = self._comm_hook
            if self._hook_state.is_by_bucket:
                hook = self._hook_state.by_bucket(hook, self.model.module)
            self.model.register_comm_hook(self._comm_state, hook)

    def ddp_device_ids(self) -> list[int] | None:
        """The `device_ids` of DistributedDataParallel: the index of this rank's device, nothing on
        a CPU.
        """
        return None if self.root_device.type == "cpu" else [self.root_device.index]

    def rank_state_dict(self) -> dict[str, Any] | None:
        """All ranks. The communication hook's state, and the number of steps that weights are
        averaged by.
        """
        hook = self._hook_state.state_dict()
        return hook and {
            "hook": hook,
            "averager_step": self._averager.step if self._averager else None,
        }

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks. Restore what this rank returned."""
        self._hook_state.load_state_dict(state["hook"])
        if self._averager is not None and state["averager_step"] is not None:
            self._averager.step = state["averager_step"]

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. Training runs through the wrapper, evaluation directly."""
        handle = self.session.handle_of(module)
        wrapper = handle.wrapped
        user = handle.module
        if name == "training_step":
            self._check_gradients = None
        if name in _WRAPPED and self.world_size > 1:
            refuse_late_hooks(user, self._own_hooks)
        if name not in _WRAPPED and name.endswith("_step"):
            return super().step_callable(name, module)
        router = next(
            (child for child in wrapper.modules() if isinstance(child, MethodRouter)), None
        )
        if router is None:  # there was nothing to train, and so nothing to wrap
            return super().step_callable(name, module)
        # Compiled inside of the wrapper, where torch's compiler sees DDP and cuts the graph at its
        # buckets.
        replacement = handle.user_callable(name) if handle.compiler is not None else None
        if isinstance(wrapper, DistributedDataParallel) and not getattr(
            user, "automatic_optimization", True
        ):
            return manual_step(router, wrapper, name, replacement)
        if isinstance(wrapper, DistributedDataParallel) and name == "training_step":
            self._check_gradients = explain_unused(
                wrapper._check_reducer_finalized, self._wrapped.get(user)
            )
        return explain_unused(
            router.route(wrapper, name, replacement=replacement), self._wrapped.get(user)
        )

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """All ranks, each batch. One step, after which gradients are complete on this rank; see
        `Strategy`.

        Raises:
            ModuleError: a parameter got none. On one rank alone this must be published before it
                comes to its next collective, which would meet the gradients of the others, and gloo
                ends the process then.
        """
        output = super().run_training_step(batch, batch_idx, step)
        if self._check_gradients is not None:
            self._check_gradients()
        return output

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, which averages gradients on its way; see `Strategy.backward`."""
        wrapper = self.session.handle_of(module).wrapped if manual else None
        if isinstance(wrapper, DistributedDataParallel) and wrapper.require_backward_grad_sync:
            # inside its forward, DDP itself doesn't know yet that there is a backward
            wrapper.reducer.prepare_for_backward([loss] if wrapper.find_unused_parameters else [])
        super().backward(loss, module, manual=manual, **kwargs)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay local; with `static_graph`, torch has to
        exchange them.
        """
        wrapper = self.session.handle_of(module).wrapped
        if enabled and isinstance(wrapper, DistributedDataParallel) and not wrapper.static_graph:
            return wrapper.no_sync()
        return super().no_backward_sync(module, enabled)

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules and the averager."""
        super().release()
        self._averager = self._check_gradients = None
        self._is_apart = False
        self._hook_state.restart()
        self._leaves_some_out = False
        self._frozen.forget()
        self._wrapped.clear()
        while self._sparse_hooks:
            self._sparse_hooks.popitem()[1].remove()


def _wrap(hook: Callable[..., Any] | None, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    if hook is None:
        raise ConfigurationError(
            "ddp_comm_wrapper wraps a hook, and ddp_comm_hook is None. Pass both."
        )
    wrapped: Callable[..., Any] = wrapper(hook)
    return wrapped
