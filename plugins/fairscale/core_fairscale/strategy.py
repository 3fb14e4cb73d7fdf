"""One replica of the model in every process; the optimizer's state and the averaged gradients are
split between them.

FairScale's OSS and ShardedDataParallel:
https://fairscale.readthedocs.io/en/stable/deep_dive/oss_sdp_fsdp.html.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from core import Capability, Chunk, ConfigurationError, ShardedLeaf
from core.registry import require_package
from core.strategies import (
    MethodRouter,
    ParallelStrategy,
    refuse_sparse_layers,
    refuse_unlike_modules,
    set_within,
)
from core_fairscale import norms, refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer

    from core import GradientClipping, Precision
    from core_fairscale.sharded_model import ShardedModel

# Steps whose backward needs gradients averaged; the others run without the wrapper, so that ranks
# may differ in length.
_WRAPPED = frozenset({"training_step", "forward"})


class DDPShardedStrategy(ParallelStrategy):
    """Data parallelism whose optimizer state is split between ranks, with FairScale 0.4.13. New
    work uses `fsdp`.
    """

    def __init__(
        self,
        *given: Any,
        find_unused_parameters: bool | None = None,
        broadcast_buffers: bool = True,
        reduce_buffer_size: int = 0,
        **options: Any,
    ) -> None:
        """Options of the strategy, of FairScale's wrapper, and of every parallel strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            find_unused_parameters: a parameter may get a gradient on some ranks and none on others,
                where it counts as zero. None and False make that an error. What no rank uses is
                never an error.
            broadcast_buffers: the buffers of rank 0, such as running means, go to all before each
                training step.
            reduce_buffer_size: 0, FairScale's "no buckets". With its buckets, gradients that are
                None between two steps, as `optimizer.zero_grad()` leaves them since torch 2.0,
                never reach the optimizer.
            options: of `ParallelStrategy` (`start_method`, `process_group_backend`, `timeout`,
                ...).

        Raises:
            ConfigurationError: an unknown option, or a value that trains wrongly.
        """
        super().__init__(*given, **options)
        if reduce_buffer_size != 0:
            raise ConfigurationError(
                f"reduce_buffer_size={reduce_buffer_size}: FairScale's buckets lose gradients "
                "after optimizer.zero_grad(), which sets them to None since torch 2.0: the loss "
                "falls, and the weights are wrong. Leave it at 0."
            )
        self.find_unused_parameters = bool(find_unused_parameters)
        self.broadcast_buffers = broadcast_buffers
        self._models: list[ShardedModel] = []

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, joint set-up, and gradients and state split
        between ranks.
        """
        own = (
            Capability.JOINT_SETUP
            | Capability.OWNS_GRADIENTS
            | Capability.SHARDED_STATE
            | Capability.NO_SYNC
        )
        return super().capabilities | own

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. All have alike what owners send, and buffers unless
        `broadcast_buffers=False`.
        """
        is_sent = tensor is None or isinstance(tensor, nn.Parameter) or self.broadcast_buffers
        return () if is_sent else None

    def configure_precision(self, name: str) -> Precision | None:
        """The generic ones serve, but for those that scale the loss. Main process.

        Raises:
            ConfigurationError: `16-mixed`: only a gradient's owner would see that it overflowed,
                and skip its step.
        """
        if name == "16-mixed":
            raise ConfigurationError(
                f"precision={name!r} scales the loss, and {type(self).__name__} keeps each "
                "gradient on one rank, which alone would see an overflow. Use 'bf16-mixed'; or "
                "strategy='fsdp', or 'ddp'."
            )
        return super().configure_precision(name)

    def check(self) -> None:
        """Refuse to begin without FairScale.

        Raises:
            ConfigurationError: it isn't installed.
        """
        require_package("fairscale", user=type(self).__name__, install="fairscale==0.4.13")
        super().check()

    # module and optimizers ------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move a module that isn't trained; all ranks have the weights of
        rank 0.

        Raises:
            ModuleError: a layer gives sparse gradients, or the ranks have built different modules.
        """
        refuse_sparse_layers(self, module)
        refuse_unlike_modules(self, module)
        super().setup_module(module)
        self._share_weights(module)
        return self.model

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Split the optimizers between ranks, and wrap the module so that gradients go
        where they belong.

        Raises:
            ConfigurationError: a module or an optimizer that FairScale would train wrongly.
        """
        from core_fairscale.sharded_optimizer import ShardedOptimizer

        self.setup_module(module)
        if not optimizers:
            return self.model, [], scheduler
        refusals.refuse(module, optimizers)  # a precision may have converted it
        sharded: list[Any] = [ShardedOptimizer(optimizer) for optimizer in optimizers]
        self.model = model = self._wrap(module, sharded)
        self._models.append(model)
        return model, sharded, scheduler

    def _wrap(self, module: nn.Module, optimizers: list[Any]) -> ShardedModel:
        from core_fairscale.sharded_model import ShardedModel

        names: dict[Tensor, str] = {
            parameter: name for name, parameter in module.named_parameters()
        }
        return ShardedModel(
            MethodRouter(module),
            optimizers,
            names,
            find_unused=self.find_unused_parameters,
            broadcast_buffers=self.broadcast_buffers,
        )

    def _share_weights(self, module: nn.Module) -> None:
        if self.world_size > 1:
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.detach(), src=0)

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. Training runs through the wrapper, evaluation directly."""
        handle = self.session.handle_of(module)
        evaluates = name not in _WRAPPED and name.endswith("_step")
        if handle.wrapped not in self._models or evaluates:
            return super().step_callable(name, module)
        router: Any = handle.wrapped.module
        replacement = handle.user_callable(name) if handle.compiler is not None else None
        routed: Callable[..., Any] = router.route(handle.wrapped, name, replacement=replacement)
        return routed

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, after which each rank has the averaged gradients of the parameters
        that it owns.
        """
        models = [one for one in self._models if module is None or one is module]
        for model in models:
            model.prepare_backward()
        super().backward(loss, module, manual=manual, **kwargs)
        for model in models:
            model.finish_backward()

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay local."""
        model = self.session.handle_of(module).wrapped
        if model not in self._models:
            return super().no_backward_sync(module, enabled)
        return set_within(model, "is_accumulating", enabled)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip the gradients that this rank owns, by the norm of all of them; see
        `Strategy`.
        """
        if clipping.algorithm != "norm":
            return super().clip_gradients(module, optimizer, clipping)
        return norms.clip(self, optimizer, clipping)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step what each rank owns, and send it."""
        updated = super().optimizer_step(optimizer, closure)
        self.session.stepped(optimizer)
        return updated

    # state ----------------------------------------------------------------------------------------

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. Optimizer state by parameter names: whole on rank 0 and nothing elsewhere, or
        each rank's part.
        """
        named = dict(zip(self.parameter_names(optimizer), _parameters(optimizer), strict=True))
        mine = self._own_entries(optimizer, named)
        is_sharded = self.checkpoint_io.layout == "sharded"
        convert = _as_it_is if is_sharded else self._whole
        described = {
            name: {key: _describe(value) for key, value in entry.items()}
            for name, entry in mine.items()
        }
        entries = {}
        for name, entry in self._described_by_all(described).items():
            own = mine.get(name, {})
            entries[name] = {
                key: convert(_leaf(about, own.get(key))) for key, about in entry.items()
            }
        names = iter(named)
        groups = [
            {**group, "params": [next(names) for _ in group["params"]]}
            for group in optimizer.param_groups
        ]
        return (
            {"state": entries, "param_groups": groups} if is_sharded or self.is_global_zero else {}
        )

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore a state, whole or in parts; each rank takes its own."""
        entries = {
            name: {key: _content(value) for key, value in entry.items()}
            for name, entry in state["state"].items()
        }
        super().load_optimizer_state_dict(optimizer, {**state, "state": entries})

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. Memory for the tensors of what this rank owns; of the others it reads
        nothing.
        """
        named = dict(zip(self.parameter_names(optimizer), _parameters(optimizer), strict=True))
        owned = self._own_entries(optimizer, named, also_empty=True)
        entries = described.get("state")
        if not isinstance(entries, dict):
            return None
        return {
            "state": {
                name: {key: _memory(about, name in owned) for key, about in entry.items()}
                for name, entry in entries.items()
                if isinstance(entry, dict)
            }
        }

    def _own_entries(
        self, optimizer: Any, named: Mapping[str, Tensor], *, also_empty: bool = False
    ) -> dict[str, dict[str, Any]]:
        """The state of each parameter that this rank owns."""
        owned = {name: parameter for name, parameter in named.items() if optimizer.owns(parameter)}
        states = {
            name: dict(optimizer.optim.state.get(parameter, {}))
            for name, parameter in owned.items()
        }
        return {name: state for name, state in states.items() if state or also_empty}

    def _described_by_all(self, described: dict[str, Any]) -> dict[str, Any]:
        gathered = self.broadcast(self.gather_objects(described))
        merged = {name: entry for part in gathered for name, entry in part.items()}
        return dict(sorted(merged.items()))  # the same order on all ranks

    def _whole(self, value: Any) -> Any:
        if not isinstance(value, ShardedLeaf):
            return value
        total = torch.zeros(value.global_shape, dtype=value.dtype, device=self.root_device)
        gathered = value.gather(total, partial(self.reduce, reduce_op="sum"))
        return gathered.cpu() if self.is_global_zero else None

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        self._models = []


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _as_it_is(value: Any) -> Any:
    return value


def _describe(value: Any) -> Any:
    """A leaf without content for a tensor that has dimensions; the value itself if it is small."""
    if isinstance(value, torch.Tensor) and value.ndim:
        return ShardedLeaf(tuple(value.shape), value.dtype)
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _leaf(about: Any, own: Tensor | None) -> Any:
    if not isinstance(about, ShardedLeaf) or own is None:
        return about
    chunk = Chunk((0,) * own.ndim, tuple(own.shape), own)
    return ShardedLeaf(about.global_shape, about.dtype, (chunk,))


def _memory(about: Any, is_owned: bool) -> Any:
    shape = tuple(getattr(about, "shape", ()))
    if not shape:
        return None
    return _leaf(
        ShardedLeaf(shape, about.dtype), torch.empty(shape, dtype=about.dtype) if is_owned else None
    )


def _content(value: Any) -> Any:
    """The whole tensor that a leaf holds; None on ranks that don't own it."""
    if not isinstance(value, ShardedLeaf):
        return value
    return value.chunks[0].tensor if value.chunks else None
