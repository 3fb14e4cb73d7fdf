"""A program under one strategy, up to its second optimizer step, in a process made for it."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from core import Capability, ClusterEnvironment, Fabric, Launcher, Strategy, Trainer
from core.callbacks import Callback
from core_plan.arguments import replace_arguments
from core_plan.rehearsal.mode import Rehearsal
from core_plan.rehearsal.world import PretendedEnvironment, join, pass_by_values, pretend
from core_plan.silence import kept_callbacks, silent_loggers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core_plan.contender import Contender

_NUM_STEPS = 2
"""The second has the optimizer's state beside activations. What DDP and engines do in it once is
over in a third.
"""

_MANY = 40_000
"""Operations of two steps after which there is no third."""

_MOST_WINDOWS = 8
_MOST_CHUNKS = 64
_WITHOUT_WORKERS = {
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
    "pin_memory": False,
}

_QUIET = {
    "logger": silent_loggers,
    "log_every_n_steps": 2**31,  # nobody has the values
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "profiler": None,
    "fast_dev_run": False,
}


class Rehearsed:
    """One rehearsal, in the child process: its hooks, and its findings."""

    def __init__(
        self,
        contender: Contender,
        devices: int,
        num_nodes: int,
        options: Mapping[str, Any],
        report: Callable[[Any], None],
        rank: int = 0,
        meeting: str | None = None,
        *,
        peers: Sequence[int] = (),
        is_real: bool = False,
    ) -> None:
        """Change this process for good: the next Trainer or Fabric is rehearsed.

        Args:
            contender: the strategy.
            devices: ranks a node.
            num_nodes: nodes.
            options: further arguments of Trainer or Fabric that replace the program's.
            report: called once, with the findings. The process has ended then.
            rank: of this process.
            meeting: path of a file in which processes meet, one a rank; None: the other ranks are
                pretended.
            peers: who meets, if that isn't all; the others are pretended.
            is_real: run with real tensors, for engines that take no others.
        """
        self._contender, self._devices, self._num_nodes = contender, devices, num_nodes
        self._rank, self._has_peers, self._is_real = rank, meeting is not None, is_real
        self._is_among_all = self._has_peers and not peers
        self._send, self._mode, self._num_steps = report, Rehearsal(self._has_peers, is_real), 0
        self.strategy: Strategy | None = None
        self._own_strategy: str | None = None
        join(devices * num_nodes, rank, meeting, peers)
        self._replace(options)
        without_memory: Any = lambda module, name, one: self._mode.weightless(one)  # noqa: E731  # their types say None
        buffer_without_memory: Any = lambda module, name, one: self._weightless_buffer(one)  # noqa: E731
        register_module_parameter_registration_hook(without_memory)
        register_module_buffer_registration_hook(buffer_without_memory)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        _watch_resizes(self._mode)
        if not is_real:
            _swap_without_memory()
            _chunk_by_shapes()
        self._entered = ExitStack()  # to the process's end
        # DTensor finds the mode of fakes there
        self._entered.enter_context(tracing(TracingContext(self._mode.fake)))
        self._entered.enter_context(self._mode)

    def _report(self, found: dict[str, Any]) -> None:
        self._send(found)

    def _replace(self, options: Mapping[str, Any]) -> None:
        common = {
            "accelerator": "cpu",
            "devices": self._devices,
            "num_nodes": self._num_nodes,
            "strategy": self._make_strategy,
            "plugins": self._plugins,
            "watch": False,
            "compile": False,
        }
        own = {name: value for name, value in options.items() if name != "accumulate_grad_batches"}
        replace_arguments(Fabric, {**common, "loggers": silent_loggers, **own}, self._made)
        watching = _Watching(self._mode.ledger.begin_steps, self._give_up)
        callbacks = {"callbacks": lambda given: [*kept_callbacks(given), watching]}
        replace_arguments(
            Trainer,
            {**common, **_QUIET, **callbacks, "limit_val_batches": 0, **options},
            self._made,
        )
        replace_arguments(torch.utils.data.DataLoader, _WITHOUT_WORKERS)
        for owner, name in ((Trainer, "fit"), (Fabric, "setup"), (Fabric, "setup_module")):
            setattr(owner, name, self._begins_at(getattr(owner, name)))
        for name in ("validate", "test"):
            setattr(Trainer, name, self._assumed_metrics)

    def _assumed_metrics(self, *_: Any, **__: Any) -> list[dict[str, float]]:
        """In place of an evaluation before `fit`, of which nobody has the numbers."""
        self._mode.assumed["metrics of an evaluation before fit were taken to be 1.0"] = None
        return [_AssumedMetrics()]

    def _make_strategy(self, given: Any) -> Any:
        if isinstance(given, str) and given != "auto":  # a Fabric within a Trainer gets an object
            self._own_strategy = given
        return self._contender.make()

    def _plugins(self, given: Any) -> list[Any]:
        if given is None:
            given = []
        kept = given if isinstance(given, list | tuple) else [given]
        others = [one for one in kept if not isinstance(one, ClusterEnvironment | Launcher)]
        return [*others, PretendedEnvironment(self._devices, self._num_nodes, self._rank)]

    def _made(self, owner: Any, given: Mapping[str, Any]) -> None:
        self.strategy = owner.strategy
        if not self._is_real and owner.strategy.capabilities & (
            Capability.OWNS_STEP | Capability.JOINT_SETUP
        ):
            self._report(
                {"failure": "It is an engine, whose own code looks at values.", "is_engine": True}
            )
            os._exit(0)
        if not self._is_real:
            (pass_by_values if self._is_among_all else pretend)(owner.strategy)

    def _begins_at(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def begun(owner: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._begin(module)
            result = method(owner, module, *args, **kwargs)
            if isinstance(owner, Trainer):
                self._give_up("fit has ended")  # before what the program does with it
            self._mode.ledger.begin_steps()
            return result

        return begun

    def _give_up(self, why: str) -> None:
        text = (
            f"{why} after {self._num_steps} steps of a torch.optim.Optimizer; a plan takes "
            f"{_NUM_STEPS} of a rank."
        )
        self._report({"failure": text})
        os._exit(0)

    def _begin(self, module: torch.nn.Module) -> None:
        """Count from here on. What the module has got otherwise than by its own methods loses its
        memory too.
        """
        for part in module.modules():
            for name, one in part._parameters.items():
                part._parameters[name] = None if one is None else self._mode.weightless(one)  # type: ignore[assignment]
        self._mode.counts = True
        self._mode.ledger.mark(map(_local, module.parameters()), "parameters")
        self._mode.ledger.mark(map(_local, module.buffers()), "buffers")

    def _weightless_buffer(self, buffer: torch.Tensor | None) -> torch.Tensor | None:
        # A counter, which the program may ask for its value.
        if buffer is None or buffer.numel() <= 1:
            return buffer
        return self._mode.weightless(buffer)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters, buffers = self._held(optimizer)
        self._mode.ledger.mark(map(_local, parameters), "parameters")
        self._mode.ledger.mark(map(_local, buffers), "buffers")
        self._mode.ledger.mark(
            (_local(one.grad) for one in parameters if one.grad is not None), "gradients"
        )

    def _held(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        handles = [] if self.strategy is None else self.strategy.session.handles
        modules = [module for handle in handles for module in (handle.module, handle.wrapped)]
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        parameters += [one for module in modules for one in module.parameters()]
        return parameters, [one for module in modules for one in module.buffers()]

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        kept = [
            one
            for state in optimizer.state.values()
            for one in state.values()
            if isinstance(one, torch.Tensor)
        ]
        self._mode.ledger.mark(map(_local, kept), "optimizer")
        self._num_steps += 1
        is_quick = self._mode.num_operations < _MANY and not self._has_peers  # whose numbers differ
        if self._num_steps < _NUM_STEPS + (self._is_real or is_quick):
            self._mode.sent.clear()
            return
        self._mode.counts = False
        self._report(self._found(optimizer))
        if self._has_peers:
            for group in dist.distributed_c10d._world.pg_map:
                if dist.get_backend(group) == "gloo":
                    with suppress(RuntimeError):  # one that has failed
                        dist.barrier(group)  # others may still need this rank's connections
        os._exit(0)  # the program isn't asked, and writes nothing

    def _found(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        sent: Counter[str] = Counter()
        axes = self._axes()
        for (name, group), size in self._mode.sent.items():
            sent[f"{name} {axes.get(group, 'all')}"] += size
        setup_bytes, memory = self._mode.ledger.peaks()
        return {
            "memory": memory,
            "setup_bytes": setup_bytes,
            "sent": dict(sent),
            "checkpoint_bytes": self._checkpoint_bytes(optimizer),
            "assumed": list(self._mode.assumed),
            "own_strategy": self._own_strategy,
        }

    def _axes(self) -> dict[str, str]:
        mesh: Any = getattr(self.strategy, "device_mesh", None)
        names = () if mesh is None else mesh.mesh_dim_names or ()
        return {mesh.get_group(name).group_name: name for name in names}

    def _checkpoint_bytes(self, optimizer: torch.optim.Optimizer) -> int:
        """Bytes that each rank writes, parameters and optimizer: its parts, or its share of what
        all have alike.
        """
        assert self.strategy is not None
        parameters, _ = self._held(optimizer)
        state = [
            one
            for each in optimizer.state.values()
            for one in each.values()
            if isinstance(one, torch.Tensor)
        ]
        size = sum(
            {
                id(one): one.nbytes for one in map(_local, parameters + state) if not one.is_meta
            }.values()
        )
        alike = Capability.REPLICATED_PARAMETERS in self.strategy.capabilities
        return -(-size // self.strategy.world_size) if alike else size


class _Watching(Callback):
    """Notes when steps begin, and gives up where batches pass and no optimizer steps."""

    def __init__(self, begin_steps: Callable[[], None], give_up: Callable[[str], None]) -> None:
        self._begin_steps, self._give_up = begin_steps, give_up

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self._begin_steps()

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 >= _MOST_WINDOWS * trainer.accumulate_grad_batches:
            self._give_up(f"{batch_idx + 1} batches are over")


class _AssumedMetrics(dict[str, float]):
    """Has each metric."""

    def __missing__(self, name: str) -> float:
        return 1.0


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, of a DTensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _watch_resizes(mode: Rehearsal) -> None:
    """Note in the ledger storages that are emptied and filled again, as FSDP's are: no operation
    does that.
    """
    own = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        if mode.counts:
            mode.ledger.resize(storage, int(size))
        return own(storage, size)

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]  # of this process alone


def _swap_without_memory() -> None:
    """Make `Module.to` work where a tensor without memory is known to others too, which it
    refuses.
    """
    own: Any = torch.utils.swap_tensors

    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        if isinstance(first, FakeTensor) and isinstance(second, FakeTensor):
            first.data = second.detach()
        else:
            own(first, second)

    torch.utils.swap_tensors = swap  # of this process alone


def _chunk_by_shapes() -> None:
    """Make one view of all chunks that have one shape in torch's sharding: it's cheap at any number
    of ranks.
    """
    own = torch.chunk

    def chunk(input: torch.Tensor, chunks: int, dim: int = 0) -> Sequence[torch.Tensor]:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if (
            chunks <= _MOST_CHUNKS
            or not isinstance(input, FakeTensor)
            or not caller.startswith("torch.distributed.")
        ):
            return own(input, chunks, dim)
        size = -(-input.shape[dim] // chunks)
        number, rest = divmod(input.shape[dim], max(1, size))
        found = [input.narrow(dim, 0, size)] * number
        found += [input.narrow(dim, number * size, rest)] if rest else []
        return found + [input.new_empty(0)] * (chunks - len(found))  # as it fills up itself

    torch.chunk = chunk  # type: ignore[assignment]  # of this process alone
