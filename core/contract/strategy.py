"""How one model is trained on many devices."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from core.contract import default_step, module_tree, optimizer_state, overrides, state_objects
from core.contract.capability import Capability
from core.contract.collectives import StrategyCollectives
from core.contract.errors import CheckpointError, ConfigurationError, UnsupportedError
from core.contract.mismatch import describe_mismatch
from core.contract.module_handle import ModuleHandle
from core.contract.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from core.contract.accelerator import Accelerator
    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.fingerprint import Fingerprint
    from core.contract.launcher import Launcher
    from core.contract.setup_host import SetupHost
    from core.contract.step import GradientClipping, StepOutput, TrainingStep

Stage: TypeAlias = Literal["fit", "validate", "test", "predict"]
ReduceOp: TypeAlias = Literal["mean", "sum", "min", "max", "product"]


class Strategy:
    """How one model is trained on many devices. Meant to be subclassed.

    Every method has a default for one process, and the device comes from the accelerator: a class that overrides
    `setup_module` and `reduce` is a strategy. The numbered groups below are the call sequence, the same for Fabric and
    Trainer:

    1. `connect(...)`, main process: `resolve` fills in what the user left open. No device is touched, no process made.
    2. `launcher.launch(function)`, main process: makes the workers, or calls in place.
    3. `setup_environment()`, all ranks: the device is selected, the process group joined. From here on ranks are right.
    4. `init_context()`, all ranks: the user's model is built inside it.
    5. `setup_module(module)`, then `setup_optimizer(optimizer)`, all ranks; or with `Capability.JOINT_SETUP`
       `setup_module_and_optimizers(...)`. Callers go through `add_module` and `add_optimizers`, which keep the handles.
    6. `setup_dataloader(loader, stage)`, all ranks.
    7. `load_checkpoint(path, state)`, all ranks.
    8. `step_callable(name)` once a stage; then `run_training_step(...)` for each batch, all ranks. Between two steps
       `synchronize_model()`: before validation, before a checkpoint, and when training has ended.
    9. Collectives, all ranks, in the same order on each.
    10. `save_checkpoint(path, state)`, all ranks.
    11. `teardown()`, all ranks: idempotent, also after an exception. Workers stay; the launcher ends those.

    Ranks and world size count **processes**; `num_devices` counts **devices**, of which one process may have many;
    `data_parallel_size` and `data_parallel_rank` count **shares of the data**, which ranks of one tensor-parallel group
    have in common. Samplers, loss scaling, positions and logged sums use the last pair only. Ranks of one share compute
    what they have in common alike, so they have to draw the same random numbers; the strategy sees to that.
    """

    launcher_name: str = "in_place"
    """Alias of the launcher that makes the processes when the cluster has not."""

    interactive_alias: str | None = None
    """Alias to recommend where this strategy's launcher can't work, such as in a notebook."""

    accelerator: Accelerator
    launcher: Launcher
    model: nn.Module
    fingerprint: Fingerprint = ()
    """(kind, alias, provider, version) of every choice, set by `resolve`; ranks compare it before they communicate."""
    device_mesh: DeviceMesh | None = None
    """All devices of the run by named axes, from `setup_environment` on; None for a strategy that has no such axes."""
    compiler: Callable[[Any], Any] | None = None
    """What the methods of the next module that is added go through, such as `torch.compile`; see `ModuleHandle`."""

    def __init__(
        self,
        *,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        """All options may be left open; `resolve` fills them in.

        Args:
            accelerator: the kind of device.
            parallel_devices: the devices of this node, one a process.
            cluster_environment: who started the processes.
            checkpoint_io: how checkpoints are stored.
            precision_plugin: in which number formats to compute.
        """
        if accelerator is not None:
            self.accelerator = accelerator
        self._parallel_devices = list(parallel_devices) if parallel_devices is not None else None
        self._cluster_environment = cluster_environment
        self._checkpoint_io = checkpoint_io
        self._precision_plugin = precision_plugin

    # A subclass may leave out super().__init__(), so that what is open is open here too.
    _parallel_devices: list[torch.device] | None = None
    _cluster_environment: ClusterEnvironment | None = None
    _checkpoint_io: CheckpointIO | None = None
    _precision_plugin: Precision | None = None
    _filled_in: Mapping[str, Any] | None = None
    _handles: list[ModuleHandle] | None = None
    _optimizers: list[Optimizer] | None = None
    _lr_schedulers: list[Any] | None = None
    num_nodes: int = 1

    # 1. composition -------------------------------------------------------------------------------------------------

    def connect(
        self,
        *,
        accelerator: Accelerator,
        parallel_devices: Sequence[torch.device],
        num_nodes: int,
        cluster_environment: ClusterEnvironment | None,
        launcher: Launcher,
        precision_plugin: Precision,
        checkpoint_io: CheckpointIO,
        fingerprint: Fingerprint,
    ) -> None:
        """Main process. Take the parts that were resolved; those that the user passed are among them.

        Called once for each Fabric or Trainer that the strategy is given to; what was filled in is decided anew.
        """
        given = self.given_parts()
        self.accelerator = accelerator
        self._parallel_devices = list(parallel_devices)
        self.num_nodes = num_nodes
        self._cluster_environment = cluster_environment
        self.launcher = launcher
        self._precision_plugin = precision_plugin
        self._checkpoint_io = checkpoint_io
        self.fingerprint = fingerprint
        self._filled_in = {name: part for name, part in self._parts().items() if name not in given}
        precision_plugin.connect(self)

    def given_parts(self) -> dict[str, Any]:
        """Main process. The parts that the user passed or set, under the names of the options of `__init__`.

        What an earlier `connect` filled in is not among them. Read by `resolve`; not meant to be overridden.
        """
        filled_in = self._filled_in or {}
        return {name: part for name, part in self._parts().items() if part is not filled_in.get(name)}

    def _parts(self) -> dict[str, Any]:
        """The parts that are there."""
        parts = {
            "accelerator": getattr(self, "accelerator", None),
            "parallel_devices": self._parallel_devices,
            "cluster_environment": self._cluster_environment,
            "checkpoint_io": self._checkpoint_io,
            "precision_plugin": self._precision_plugin,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def configure_precision(self, name: str) -> Precision | None:
        """The strategy's own precision of this name, or None for the generic one.

        Main process. Sharded mixed precision is not autocast; an engine may have formats of its own.
        """
        return None

    def configure_checkpoint_io(self) -> CheckpointIO | None:
        """The strategy's own default CheckpointIO, or None for the core's. Main process."""
        return None

    def check(self) -> None:
        """Main process, after `connect`: refuse a combination that can't work, before any process starts.

        Raises:
            ConfigurationError: what was asked, why it can't be, and the nearest that can.
        """

    @property
    def capabilities(self) -> Capability:
        """What this instance can do, or insists on doing itself."""
        return (
            Capability.MANUAL_OPTIMIZATION
            | Capability.SEVERAL_MODULES
            | Capability.SEVERAL_OPTIMIZERS
            | Capability.CLIP_BY_VALUE
            | Capability.BIT_EXACT_RESUME
        )

    @property
    def replicates_parameters(self) -> bool:
        """Whether parameters, and what optimizers keep for them, are the same on all ranks, bit for bit.

        Then the ranks share the work of writing them.
        """
        return False

    @property
    def evaluates_in_inference_mode(self) -> bool:
        """Whether weights that were used under `torch.inference_mode` can be trained afterwards.

        If not, the Trainer evaluates under `torch.no_grad` as a whole: hooks, metrics and steps share their tensors.
        """
        return True

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The devices of this node that the run uses."""
        return self._parallel_devices or []

    @property
    def cluster_environment(self) -> ClusterEnvironment | None:
        """Who started the processes; None for a strategy of one process."""
        return self._cluster_environment

    @property
    def precision_plugin(self) -> Precision:
        """In which number formats to compute."""
        if self._precision_plugin is None:
            self._precision_plugin = Precision()
            self._filled_in = {**(self._filled_in or {}), "precision_plugin": self._precision_plugin}
        return self._precision_plugin

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """How checkpoints are stored."""
        if self._checkpoint_io is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no CheckpointIO yet: pass checkpoint_io=..., or use Fabric or Trainer."
            )
        return self._checkpoint_io

    @property
    def num_processes_per_node(self) -> int:
        """How many processes the launcher makes on each node."""
        return 1

    # 2. and 3. environment ------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """All ranks. Select the device, then join the group. Afterwards ranks and sizes are right."""
        self.accelerator.setup()
        self.setup_distributed()
        self.accelerator.setup_device(self.root_device)

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Join the process group. One process has none."""

    @property
    def root_device(self) -> torch.device:
        """The device of this rank, where its model and batches are."""
        return self.parallel_devices[0]

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return 1

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        return 0

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return 0

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return 0

    @property
    def num_devices(self) -> int:
        """Number of devices in the whole run, on all nodes."""
        return max(1, len(self.parallel_devices)) * self.num_nodes

    @property
    def data_parallel_size(self) -> int:
        """Into how many shares the data is split."""
        return self.world_size

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the data this rank gets, from 0."""
        return self.global_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this rank prints, logs and writes what only one may."""
        return self.global_rank == 0

    # 4. and 5. module and optimizers --------------------------------------------------------------------------------

    def init_context(self, *, empty: bool = False) -> AbstractContextManager[Any]:
        """All ranks. In which a model is built: on the rank's device, in the precision's format.

        Args:
            empty: weights will be loaded, so don't initialize them. A sharding strategy answers with `meta`.
        """
        stack = ExitStack()
        stack.enter_context(self.root_device)
        if (context := self.precision_plugin.init_context()) is not None:
            stack.enter_context(context)
        return stack

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert, move and wrap the module; set `self.model` and return it.

        Ranks may have built different weights. Afterwards they have those of rank 0, or their parts of them.
        """
        self.model = self.precision_plugin.convert_module(module)
        self.module_to_device(self.model)
        return self.model

    def module_to_device(self, module: nn.Module) -> None:
        """All ranks. Move parameters and buffers to `root_device`, in place."""
        from torch import nn

        if not module_tree.is_on(module, self.root_device, nn.Module):  # torch would walk through all for nothing
            module.to(self.root_device)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks, after the module of its parameters. Wrap the optimizer, or re-bind it to replaced parameters."""
        return optimizer

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks, with `Capability.JOINT_SETUP`: everything at once, as an engine wants it."""
        wrapped = self.setup_module(module)
        return wrapped, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    def add_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Set up a module and keep its handle. Not meant to be overridden.

        Raises:
            UnsupportedError: a second module, without `Capability.SEVERAL_MODULES`.
        """
        if self.handles and Capability.SEVERAL_MODULES not in self.capabilities:
            raise UnsupportedError(
                f"{type(self).__name__} can set up one module, and this is the second. Put both into one nn.Module.",
                capability=Capability.SEVERAL_MODULES,
            )
        names = module_tree.parameter_names(module)
        wrapped = overrides.required(self, "setup_module", self.setup_module(module), "the module, wrapped or not")
        self._keep(module, wrapped, names)
        return wrapped

    def add_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """All ranks. Set up optimizers whose modules were added, and keep them. Not meant to be overridden.

        Raises:
            UnsupportedError: a second optimizer, without `Capability.SEVERAL_OPTIMIZERS`.
        """
        self._check_number(len(self.optimizers) + len(optimizers))
        added = [
            overrides.required(self, "setup_optimizer", self.setup_optimizer(optimizer), "an optimizer")
            for optimizer in optimizers
        ]
        self.optimizers = [*self.optimizers, *added]
        return added

    def add_module_and_optimizers(
        self, module: nn.Module, optimizers: Sequence[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Set up everything at once and keep it. Not meant to be overridden."""
        if Capability.JOINT_SETUP not in self.capabilities:
            return self.add_module(module), self.add_optimizers(optimizers), scheduler
        self._check_number(len(optimizers))
        names = module_tree.parameter_names(module)
        wrapped, added, scheduler = overrides.required(
            self,
            "setup_module_and_optimizers",
            self.setup_module_and_optimizers(module, list(optimizers), scheduler),
            "the module, a list of optimizers, and the scheduler",
        )
        self._keep(module, wrapped, names)
        self.optimizers = [*self.optimizers, *added]
        return wrapped, added, scheduler

    def _check_number(self, num_optimizers: int) -> None:
        if num_optimizers > 1 and Capability.SEVERAL_OPTIMIZERS not in self.capabilities:
            raise UnsupportedError(
                f"{type(self).__name__} can set up one optimizer, not {num_optimizers}. Use parameter groups.",
                capability=Capability.SEVERAL_OPTIMIZERS,
            )

    def _keep(self, module: nn.Module, wrapped: nn.Module, names: dict[int, str]) -> None:
        self.handles.append(ModuleHandle(module, wrapped, names, self.compiler))
        self.model = wrapped

    @property
    def handles(self) -> list[ModuleHandle]:
        """The modules that were set up, in order."""
        if self._handles is None:
            self._handles = []
        return self._handles

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that were set up, in order."""
        return self._optimizers if self._optimizers is not None else []

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers

    @property
    def lr_schedulers(self) -> list[Any]:
        """The schedulers of the run, in order; stepped by the core unless `Capability.OWNS_SCHEDULER`."""
        return self._lr_schedulers if self._lr_schedulers is not None else []

    @lr_schedulers.setter
    def lr_schedulers(self, schedulers: list[Any]) -> None:
        self._lr_schedulers = schedulers

    def setup(self, trainer: SetupHost) -> None:
        """All ranks. Groups 4 to 7, as the Trainer calls them. An expert overrides this, or one of the small hooks."""
        with self.init_context():
            trainer.configure_model()
        if Capability.JOINT_SETUP in self.capabilities and trainer.trains:
            optimizers, schedulers = trainer.configure_optimizers()
            scheduler = schedulers[0] if schedulers else None
            self.add_module_and_optimizers(trainer.module, optimizers, scheduler)
            self.lr_schedulers = schedulers
        else:
            self.add_module(trainer.module)
            if trainer.trains:
                optimizers, self.lr_schedulers = trainer.configure_optimizers()
                self.add_optimizers(optimizers)
        trainer.setup_dataloaders()
        trainer.restore()

    # 6. data --------------------------------------------------------------------------------------------------------

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All ranks. Replace the loader, or move its batches ahead of time.

        It has been sharded by `data_parallel_rank` and `data_parallel_size` already.
        """
        return loader

    # 8. steps -------------------------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once when a stage begins: how the user's method is to be called.

        Args:
            name: of a method of the user's module: `"training_step"`, or `"forward"`.
            module: the user's module if there are several.
        """
        handle = self.handle_of(module)
        if name != "forward" or handle.wrapped is handle.module:
            return handle.user_callable(name)
        return handle.wrapped if handle.compiler is None else handle.compiler(handle.wrapped)

    def handle_of(self, module: nn.Module | None = None) -> ModuleHandle:
        """The handle of a module, own or wrapped; of the last one that was set up if None is given.

        Raises:
            ConfigurationError: the module wasn't set up with this strategy.
        """
        for handle in reversed(self.handles):
            if module is None or module is handle.module or module is handle.wrapped:
                return handle
        raise ConfigurationError(
            f"{type(module).__name__} was not set up with this {type(self).__name__}: call fabric.setup(module) first."
        )

    def forward_context(self) -> AbstractContextManager[Any] | None:
        """Asked once a stage: what the user's step runs in, or None."""
        return self.precision_plugin.forward_context(self.root_device.type)

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """All ranks, each batch: forward, backward, and at the end of a window the optimizer's step.

        Args:
            batch: on the device, of the user's own structure.
            batch_idx: number of the batch in its epoch, from 0.
            step: what has to be done, the same object for the whole stage.
        """
        return default_step.run(self, batch, batch_idx, step)

    def backward(self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any) -> None:
        """All ranks. Compute gradients, and exchange them unless `no_backward_sync` is on.

        Args:
            loss: scalar with a graph; divided by the accumulation window already.
            module: the wrapped module whose parameters get the gradients, None if that can't be told.
            manual: called by the user inside a training step, perhaps several times.
            kwargs: of `Tensor.backward`, such as `retain_graph`.
        """
        self.precision_plugin.backward(loss, **kwargs)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """All ranks. A context around forward and backward in which gradients stay local, with `Capability.NO_SYNC`."""
        return nullcontext()

    def clip_gradients(self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping) -> Tensor | None:
        """All ranks. Clip the gradients of the optimizer's parameters in place, after unscaling.

        Returns:
            The total norm before clipping, a scalar tensor; None for the algorithm `"value"`.

        Raises:
            UnsupportedError: by value, without `Capability.CLIP_BY_VALUE`.
        """
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        self.precision_plugin.unscale_gradients(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if clipping.algorithm == "norm":
            return clip_grad_norm_(parameters, clipping.value, clipping.norm_type, clipping.error_if_nonfinite)
        if Capability.CLIP_BY_VALUE not in self.capabilities:
            raise UnsupportedError(
                f"{type(self).__name__} can't clip gradients by value: use gradient_clip_algorithm='norm'.",
                capability=Capability.CLIP_BY_VALUE,
            )
        clip_grad_value_(parameters, clipping.value)
        return None

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """All ranks. Step the optimizer.

        Returns:
            Whether parameters were updated. An overflow in fp16 skips one; some optimizers step now and then.
        """
        return self.precision_plugin.optimizer_step(optimizer, closure)

    def synchronize_model(self) -> None:
        """All ranks, between two steps. Bring together what ranks keep apart, so that there is one model again.

        For strategies that don't average in every step. Fit calls it before validation, before a checkpoint, and when
        training has ended by a limit or a stop, before `on_train_end`; `fabric.save` calls it too. A loop of the user's
        own calls it where it ends. It may come when nothing has happened since the last time, or when nothing is set up
        any more: then it does nothing.
        """

    # 9. collectives -------------------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean") -> Tensor:
        """All ranks. Combine a tensor of one shape over all ranks; the result is the same everywhere.

        Args:
            tensor: any shape; of one shape and dtype on all ranks. Not changed.
            group: a process group, None for all ranks.
            reduce_op: `"mean"`, `"sum"`, `"min"`, `"max"`, `"product"`, or the backend's own.

        Returns:
            A tensor of the same shape. The same tensor on one process.
        """
        return tensor

    def all_reduce(self, tensor: Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean") -> Tensor:
        """All ranks. Another name of `reduce`, as torch.distributed calls it."""
        return self.reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks. Stack a tensor of one shape from all ranks.

        Args:
            tensor: shape (...); of one shape and dtype on all ranks.
            group: a process group, None for all ranks.
            sync_grads: let gradients flow back to the ranks that they belong to.

        Returns:
            Shape (world_size, ...). The same tensor, of shape (...), on one process.
        """
        return tensor

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """All ranks. A tensor, or any picklable object, of rank `src`."""
        return obj

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All ranks. On rank `dst` everyone's picklable object, in the order of ranks; None elsewhere."""
        return [obj]

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all are here. `name` shows up in the message when somebody doesn't come."""

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """All ranks. Agree on yes or no: yes if all say so, or with `all=False` if any does."""
        return decision

    @property
    def collectives(self) -> Collectives:
        """As much communication as a CheckpointIO needs."""
        return StrategyCollectives(self)

    def background_collectives(self) -> Collectives:
        """All ranks. The same, for one background thread: apart from those of the training, and at the same time.

        Raises:
            UnsupportedError: several processes that have no second line to each other.
        """
        if self.collectives.size > 1:
            raise UnsupportedError(
                f"{type(self).__name__} can't communicate in the background, so several processes can't save there. "
                "Use the CheckpointIO without AsyncCheckpointIO around it."
            )
        return self.collectives

    # 7. and 10. state -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: PathLike, state: Mapping[str, Any]) -> None:
        """All ranks. Write a state in which modules and optimizers stand for their own.

        Args:
            path: a local path or a URL.
            state: values are modules and optimizers that were set up here, objects with `state_dict()`, lists and
                dicts of those, or plain values.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
        """
        plain = state_objects.to_plain(self, dict(state))
        sharded, collectives = self.checkpoint_io.layout == "sharded", self.collectives
        if sharded and self.replicates_parameters and collectives.size > 1:
            from core.contract import replicas

            plain = replicas.share_out(plain, self._parameter_tensors(), rank=collectives.rank, size=collectives.size)
        if sharded and self.device_mesh is not None:
            from core.contract import replicas

            plain = replicas.drop_copies(plain, self.device_mesh)
        writes = sharded or self.is_global_zero
        self.checkpoint_io.save_checkpoint(plain if writes else None, path, collectives=collectives)

    def _parameter_tensors(self) -> Iterator[Tensor]:
        """Parameters of all modules, and the tensors that optimizers keep for them, in an order that ranks share."""
        for handle in self.handles:
            yield from handle.module.parameters()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = optimizer.state.get(parameter, {})
                    yield from (value for value in entry.values() if hasattr(value, "data_ptr"))

    def load_checkpoint(
        self, path: PathLike, state: Mapping[str, Any] | None = None, *, strict: bool = True
    ) -> dict[str, Any]:
        """All ranks. Read a checkpoint and restore in place whatever `state` names.

        Args:
            path: a local path or a URL.
            state: as given to `save_checkpoint`; None restores nothing.
            strict: every name in `state`, and every key of a module, must be there.

        Returns:
            What was saved and isn't in `state` as an object to restore.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is damaged or foreign.
            CheckpointError: it doesn't fit what is to be restored.
        """
        return self.restore_state(self.read_checkpoint(path, state), state or {}, strict=strict)

    def read_checkpoint(self, path: PathLike, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All ranks. Read a checkpoint, the tensors of what `state` names into their places, if they fit there.

        With a CheckpointIO of layout `sharded`, each rank reads the parts that it needs, and no tensor is held twice.

        Args:
            path: a local path or a URL.
            state: as given to `save_checkpoint`.

        Returns:
            All that was saved, for `restore_state`.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is damaged or foreign.
        """
        checkpoint_io, collectives = self.checkpoint_io, self.collectives
        targets = None
        if state and checkpoint_io.layout == "sharded":
            described = checkpoint_io.describe_checkpoint(path, collectives=collectives)
            from core.contract import load_targets

            targets = load_targets.targets_of(self, described, dict(state))
        return checkpoint_io.load_checkpoint(path, collectives=collectives, state=targets)

    def restore_state(self, saved: dict[str, Any], state: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
        """All ranks. Restore in place from a state that was read already; returns what is left over."""
        if strict and (missing := [key for key in state if key not in saved]):
            raise CheckpointError(
                f"The checkpoint has no {missing[0]!r}; it has {sorted(saved)}. "
                "Leave it out of the state, or pass strict=False."
            )
        return {
            key: value
            for key, value in saved.items()
            if key not in state or not state_objects.restore(self, state[key], value, strict)
        }

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. The module's state under the names of the user's own module.

        Args:
            module: that was set up.
            layout: `"full"`, whole on rank 0; `"sharded"`, on each rank its own part, if it has parts; None asks the
                CheckpointIO.
        """
        # Not copied: torch's dict carries the versions of torch's modules.
        return module_tree.to_canonical(self.handle_of(module).module.state_dict())  # type: ignore[return-value]

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """All ranks. Put back what `get_module_state_dict` gave, in place."""
        own = self.handle_of(module).module
        try:
            own.load_state_dict(module_tree.from_canonical(own, state), strict=strict)
        except RuntimeError as error:
            report = describe_mismatch(module_tree.to_canonical(own.state_dict()), state) or str(error)
            raise CheckpointError(f"The checkpoint does not fit {type(own).__name__}.\n{report}") from error

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state by parameter names, see `core.contract.optimizer_state`; whole on rank 0."""
        return optimizer_state.to_named(optimizer.state_dict(), self.parameter_names(optimizer))

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Put back what `get_optimizer_state_dict` gave, in place."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        optimizer.load_state_dict(optimizer_state.to_positional(state, self.parameter_names(optimizer), sizes))

    def optimizer_targets(self, optimizer: Optimizer, described: Mapping[str, Any]) -> dict[str, Any] | None:
        """All ranks. Where the tensors of an optimizer's state go while a checkpoint of layout `sharded` is read.

        Args:
            optimizer: that was set up here.
            described: its saved state, with a `TensorDescription` in the place of each tensor.

        Returns:
            Tensors, DTensors and `ShardedLeaf`s to fill, at the places of the saved ones; what has no place there is
            read whole. None if all is.
        """
        from core.contract import load_targets

        return load_targets.optimizer_targets(self, described, optimizer)

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the optimizer's parameters, group after group, as in the user's own modules.

        Names of the n-th module begin with `"n."` if the optimizer holds parameters of several.

        Raises:
            ConfigurationError: a parameter belongs to none of the modules that were set up.
        """
        return optimizer_state.parameter_names(optimizer, [handle.parameter_names for handle in self.handles])

    # 11. end --------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """All ranks; idempotent, also after an exception. The group, hooks and handles are gone; workers stay."""
        self.release()
        if self._checkpoint_io is not None:
            self._checkpoint_io.teardown()
        if hasattr(self, "accelerator"):
            self.accelerator.teardown()

    def release(self) -> None:
        """All ranks; idempotent. Forget modules, optimizers and schedulers, and stay in the group."""
        self._handles = self._optimizers = self._lr_schedulers = None
        self.__dict__.pop("model", None)
