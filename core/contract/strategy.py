"""The Strategy contract: trains one model on many devices."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from core.contract.capability import Capability
from core.contract.errors import UnsupportedError
from core.contract.precision import Precision, join_contexts
from core.contract.strategy_parts import StrategyParts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core.contract.accelerator import Accelerator
    from core.contract.checkpoint_io import CheckpointIO, Collectives
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.protocols import SetupHost
    from core.contract.step import GradientClipping, Stage, StepOutput, TrainingStep
    from core.session.session import Session


class Strategy(StrategyParts):
    """Trains one model on many devices. Meant to be subclassed.

    Its parts are those of its base, `StrategyParts`, and ranks and collectives those of `World`.
    Every method has a default for one process, and the device comes from the accelerator: a class
    that overrides `setup_module` and `reduce` is a strategy. The numbered groups below are the call
    sequence, the same for Fabric and Trainer:

    1. `configure_precision`, `configure_checkpoint_io`, then `check()`, main process, once
       `resolve` has filled in what the user left open. No device is touched, no process is started.
    2. `launcher.launch(function)`, main process: makes the workers, or calls in place.
    3. `setup_environment()`, which calls `setup_distributed()`, all ranks: selects the device and
       joins the process group. From here on ranks are right.
    4. `init_context()`, all ranks: the user's model is built inside it.
    5. `setup_module(module)`, then `setup_optimizer(optimizer)`, all ranks; or both at once, see
       `SetsUpJointly`. `session` calls them and keeps what they return.
    6. `setup_dataloader(loader, stage)`, all ranks. The Trainer calls groups 4 to 7 through
       `setup(trainer)`.
    7. `load_module_state_dict`, `load_optimizer_state_dict`, all ranks.
    8. `step_callable(name)` and `forward_context()` once a stage; then `run_training_step(...)` for
       each batch, all ranks: by default `no_backward_sync`, `backward`, `clip_gradients`,
       `optimizer_step`. At the start of each epoch `refresh_modules()`: if it returns True, a
       module was wrapped again, and group 8 starts over. Between two steps `synchronize_model()`:
       before validation, before a checkpoint, and when training has ended.
    9. Collectives, all ranks, in the same order on each.
    10. `get_module_state_dict`, `get_optimizer_state_dict`, all ranks.
    11. `teardown()`, all ranks: idempotent, also after an exception. Workers stay; the launcher
        ends those.

    Ranks and world size count **processes**; `num_devices` counts **devices**, of which one process
    may have several; `data_parallel_size` and `data_parallel_rank` count **shards of the data**,
    which ranks of one tensor-parallel group share. Samplers, loss scaling, positions and logged
    sums use the last pair only. Ranks that share data must draw the same random numbers; the
    strategy sees to that.

    Features that few strategies need are separate protocols: `SetsUpJointly`, `MakesOptimizers`,
    `KeepsRankState`. A strategy that declares a capability without its protocol's methods is
    refused before any process starts.
    """

    session: Session
    """The core's side, from `resolve` on: `self.session.handles`, `.handle_of(module)` have what
    was set up.
    """

    def __init__(
        self,
        *given: Any,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device | str] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        """All options may be left open; `resolve` fills them in.

        Args:
            given: any of the following without its name, distinguished by their types.
            accelerator: the kind of device.
            parallel_devices: the devices of this node, one a process; or their names, such as
                `"cuda:1"`.
            cluster_environment: the environment that started the processes.
            checkpoint_io: how checkpoints are stored.
            precision_plugin: in which number formats to compute.

        Raises:
            ConfigurationError: something without a name is none of these, or is given twice.
        """
        from core.contract import strategy_arguments

        named = {
            "accelerator": accelerator,
            "parallel_devices": parallel_devices,
            "cluster_environment": cluster_environment,
            "checkpoint_io": checkpoint_io,
            "precision_plugin": precision_plugin,
        }
        # What is left open isn't set: a subclass may leave out super().__init__() altogether.
        for name, part in strategy_arguments.by_name(type(self).__name__, given, named).items():
            setattr(self, name, part)

    # 1. composition -------------------------------------------------------------------------------

    def configure_precision(self, name: str) -> Precision | None:
        """The strategy's own precision of this name, or None for the generic one, such as autocast.
        Main process.
        """
        return None

    def configure_checkpoint_io(self) -> CheckpointIO | None:
        """The strategy's own default CheckpointIO, or None for the core's. Main process."""
        return None

    def check(self) -> None:
        """Main process, when the parts are set: refuse a combination that can't work, before any
        process starts.

        Raises:
            ConfigurationError: what was asked, why it can't be, and the nearest that can.
        """

    @property
    def capabilities(self) -> Capability:
        """The capabilities of this instance: what it can do, or insists on doing itself."""
        return (
            Capability.MANUAL_OPTIMIZATION
            | Capability.SEVERAL_MODULES
            | Capability.SEVERAL_OPTIMIZERS
            | Capability.CLIP_BY_VALUE
            | Capability.INFERENCE_MODE
            | Capability.WEIGHTED_LOSSES
            | Capability.BIT_EXACT_RESUME
        )

    @property
    def num_processes_per_node(self) -> int:
        """Number of processes that the launcher makes on each node."""
        return 1

    # 2. and 3. environment ------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """All ranks. Join the group and select the device. Afterwards ranks and sizes are right.

        A group that needs the device selects it by itself, before it connects: then it is selected
        twice.
        """
        self.accelerator.setup()
        self.setup_distributed()
        self.accelerator.setup_device(self.root_device)

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Join the process group. One process has none."""

    # 4. and 5. module and optimizers --------------------------------------------------------------

    def init_context(self, *, empty: bool = False) -> AbstractContextManager[object]:
        """All ranks. A context to build a model in: in the precision's format, on the rank's device
        (to shard: a CPU).

        Args:
            empty: weights will be loaded, so don't initialize them. A sharding strategy uses
                `meta`.
        """
        inner = self.precision_plugin.init_context() or nullcontext()
        return join_contexts(self.root_device, inner)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert, move and wrap the module; set `self.model` and return it.

        Ranks may have built different weights. Afterwards they have those of rank 0, or their parts
        of them.
        """
        self.model = self.precision_plugin.convert_module(module)
        self.module_to_device(self.model)
        return self.model

    def module_to_device(self, module: nn.Module) -> None:
        """All ranks. Move parameters and buffers to `root_device`, in place."""
        self.session.move_module(module)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks, after the module of its parameters. Wrap the optimizer, or re-bind it to
        replaced parameters.
        """
        return optimizer

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. Those of one answer, not None, keep the tensor alike in each step; without it,
        rates and steps.
        """
        return () if Capability.REPLICATED_PARAMETERS in self.capabilities else None

    def setup(self, trainer: SetupHost) -> None:
        """All ranks. Groups 4 to 7, as the Trainer calls them. Override it only where the smaller
        hooks don't do.
        """
        self.session.set_up(trainer)

    # 6. data --------------------------------------------------------------------------------------

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All ranks. Replace the loader, or move its batches ahead of time.

        It has been sharded by `data_parallel_rank` and `data_parallel_size` already. A loader that
        joins several of its batches into one, which the core then counts as one, says how many in
        its attribute `num_joined_batches`.
        """
        return loader

    # 8. steps -------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once when a stage begins: how the user's method is to be called.

        Args:
            name: of a method of the user's module: `"training_step"`, or `"forward"`.
            module: the user's module if there are several.
        """
        handle = self.session.handle_of(module)
        if name != "forward" or handle.wrapped is handle.module:
            return handle.user_callable(name)
        return handle.wrapped if handle.compiler is None else handle.compiler(handle.wrapped)

    def refresh_modules(self) -> bool:
        """All ranks, when an epoch of the Trainer begins. Train the parameters that require
        gradients now.

        For strategies whose wrapper reads that only once: hooks may have frozen, unfrozen or
        replaced some.

        Returns:
            Whether a module was wrapped again: then its handle has the new wrapper.

        Raises:
            ConfigurationError: ranks have changed different parameters.
        """
        return False

    def forward_context(self) -> AbstractContextManager[object] | None:
        """Asked once a stage: what the user's step runs in, or None."""
        return self.precision_plugin.forward_context(self.root_device.type)

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """All ranks, each batch: forward, backward, and at the end of a window the optimizer's
        step.

        Args:
            batch: on the device, of the user's own structure.
            batch_idx: number of the batch in its epoch, from 0.
            step: the description of the step, the same object for the whole stage.
        """
        return self.session.run_training_step(batch, batch_idx, step)

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Compute gradients, and exchange them unless `no_backward_sync` is on.

        Args:
            loss: scalar with a graph; divided by the accumulation window already.
            module: the wrapped module whose parameters get the gradients, None if that is unknown.
            manual: called by the user inside a training step, perhaps several times.
            kwargs: of `Tensor.backward`, such as `retain_graph`.
        """
        self.precision_plugin.backward(loss, **kwargs)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[object]:
        """All ranks. A context around forward and backward in which gradients stay local, with
        `Capability.NO_SYNC`.
        """
        return nullcontext()

    def scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        """All ranks, before gradients are unscaled. Multiply those of the optimizer's next step, in
        place.

        Called with the same factor everywhere, at the end of a window whose losses were given
        weights.
        """
        self.session.scale_gradients(optimizer, factor)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip the gradients of the optimizer's parameters in place, after unscaling.

        Returns:
            The total norm before clipping, a scalar tensor; None for the algorithm `"value"`.

        Raises:
            UnsupportedError: by value, without `Capability.CLIP_BY_VALUE`.
        """
        self.precision_plugin.unscale_gradients(optimizer)
        is_by_value = clipping.algorithm == "value"
        if is_by_value and Capability.CLIP_BY_VALUE not in self.capabilities:
            raise UnsupportedError(
                f"{type(self).__name__} can't clip gradients by value: use "
                "gradient_clip_algorithm='norm'.",
                capability=Capability.CLIP_BY_VALUE,
            )
        return clipping.clip([p for group in optimizer.param_groups for p in group["params"]])

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer.

        Returns:
            Whether parameters were updated; with `Capability.ELASTIC`, how often. An overflow in
            fp16 skips a step, and some optimizers step only now and then.
        """
        return self.precision_plugin.optimizer_step(optimizer, closure)

    def synchronize_model(self) -> None:
        """All ranks, between two steps; idempotent, also without a set-up. Merge the ranks'
        separate models into one.

        For strategies that don't average in every step. Fit calls it before validation, before a
        checkpoint, and before `on_train_end`; `fabric.save` calls it; a user's own loop calls it
        where it ends.
        """

    # 9. collectives: those of `World`, and --------------------------------------------------------

    def background_collectives(self) -> Collectives:
        """All ranks. The same for one background thread: separate from those of the training, and
        concurrent.

        Raises:
            UnsupportedError: several processes without a second channel between them.
        """
        collectives = self.session.collectives
        if collectives.size > 1:
            raise UnsupportedError(
                f"{type(self).__name__} can't communicate in the background, so several processes "
                "can't save there. Use the CheckpointIO without AsyncCheckpointIO around it."
            )
        return collectives

    # 7. and 10. state -----------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. The module's state under the names of the user's own module.

        Args:
            module: that was set up.
            layout: `"full"`, whole on rank 0; `"sharded"`, on each rank its own part, if it has
                parts; None asks the CheckpointIO.
        """
        return self.session.module_state(module)

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore what `get_module_state_dict` returned, in place."""
        self.session.load_module_state(module, state, strict=strict)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state by parameter names, whole on rank 0.

        It has torch's format, with names instead of indices: `state` is keyed by them,
        `param_groups` list them.
        """
        return self.session.optimizer_state(optimizer)

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore what `get_optimizer_state_dict` returned, in place."""
        self.session.load_optimizer_state(optimizer, state)

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. The places for an optimizer's tensors while a checkpoint of layout `sharded`
        is read.

        Args:
            optimizer: that was set up here.
            described: its saved state, with a `TensorDescription` in place of each tensor.

        Returns:
            Tensors, DTensors and `ShardedLeaf`s to fill; the others are read whole. None reads all
            of them whole.
        """
        return self.session.optimizer_targets(optimizer, described)

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the optimizer's parameters, group after group, as in the user's own modules.

        Names of the n-th module begin with `"n."` if the optimizer holds parameters of several.

        Raises:
            ConfigurationError: a parameter belongs to none of the modules that were set up.
        """
        return self.session.parameter_names(optimizer)

    # 11. end --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """All ranks; idempotent, also after an exception. The group, hooks and handles are gone;
        workers stay.
        """
        self.release()
        for name in ("checkpoint_io", "accelerator"):
            if (part := getattr(self, name, None)) is not None:
                part.teardown()

    def release(self) -> None:
        """All ranks; idempotent. Forget modules, optimizers and schedulers, and stay in the group.

        An override gathers only if `self.session.ends_together`: otherwise other ranks may never
        join.
        """
        if hasattr(self, "session"):  # a strategy that was given to no Fabric or Trainer has none
            self.session.forget()
        self.__dict__.pop("model", None)
