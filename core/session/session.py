"""The session of a strategy: the modules and optimizers that were set up with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast, final

from core.contract.capability import Capability
from core.contract.errors import ConfigurationError, UnsupportedError
from core.contract.strategy import Strategy
from core.session import default_step, mismatch, module_tree, optimizer_state
from core.session.changed_modules import ReplacedParameters, beside
from core.session.collectives import StrategyCollectives
from core.session.guards import Guards
from core.session.module_handle import ModuleHandle
from core.session.required import required

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core.contract.accelerator import Accelerator
    from core.contract.checkpoint_io import CheckpointIO, Collectives
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.launcher import Launcher
    from core.contract.precision import Precision
    from core.contract.protocols import SetsUpJointly, SetupHost
    from core.contract.spec import Fingerprint
    from core.session.weights import Weights

_PARTS = (
    "accelerator",
    "parallel_devices",
    "cluster_environment",
    "checkpoint_io",
    "precision_plugin",
)


@final
class Session:
    """The use of one strategy by Fabric, a Trainer or the conformance kit. A strategy has one:
    `strategy.session`.

    It calls the strategy's methods in the order of the contract, and keeps what came of them. An
    author asks it for modules and names, `self.session.handle_of(module)`, and never subclasses it.

    Attributes:
        strategy: the strategy.
        handles: the modules that were set up, in order.
        fingerprint: (kind, alias, provider, version) of every choice; ranks compare it before they
            communicate.
        compiler: compiles the methods of the next module that is added.
        activations: changes what added modules keep for backward, on a type of device; returns what
            undoes that.
        weights: of the losses, once one was given; None before.
        unit_compiler: compiles parts of the next module that is added, in place; returns what
            undoes that.
        compares_ranks: what ranks have alike is compared now and then, until `forget`. False leaves
            it to the user.
        buffers_stayed: steps of other ranks have left this one's buffers as they were, so that they
            may differ now.
    """

    def __init__(self, strategy: Strategy) -> None:
        """Begin a session, which the strategy then has. `Session.of` keeps one that is there."""
        self.strategy = strategy
        self.fingerprint: Fingerprint = ()
        self.compiler: Callable[[Any], Any] | None = None
        self.activations: Callable[[nn.Module, str], Callable[[], None]] | None = None
        self.unit_compiler: Callable[[nn.Module], Callable[[], None]] | None = None
        self._guards = Guards(self)
        self._filled_in: Mapping[str, object] = {}
        self._ends_alone = False
        self._replaced = ReplacedParameters(beside)
        strategy.session = self
        self.forget()

    @classmethod
    def of(cls, strategy: Strategy) -> Session:
        """The session that the strategy has; a new one if it has none."""
        if not hasattr(strategy, "session"):
            return cls(strategy)
        return strategy.session

    # composition ----------------------------------------------------------------------------------

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
        """Main process. Give the strategy the parts that were resolved; those that the user passed
        are among them.

        Called once for each Fabric or Trainer that the strategy is given to; what was filled in is
        decided anew.
        """
        # Before the last `connect`'s parts can't be distinguished from the user's any more.
        given = self.given_parts()
        strategy = self.strategy
        strategy.accelerator = accelerator
        strategy.parallel_devices = list(parallel_devices)
        strategy.num_nodes = num_nodes
        strategy.cluster_environment = cluster_environment
        strategy.launcher = launcher
        strategy.precision_plugin = precision_plugin
        strategy.checkpoint_io = checkpoint_io
        self.fingerprint = fingerprint
        self._ends_alone = False
        self._filled_in = {name: getattr(strategy, name) for name in _PARTS if name not in given}
        # Last: a precision looks at the strategy's devices.
        precision_plugin.connect(strategy)

    def given_parts(self) -> dict[str, Any]:
        """Main process. The parts that the user passed or set, under the names of the options of
        `Strategy.__init__`.

        What an earlier `connect` filled in is not among them.
        """
        given = {}
        for name in _PARTS:
            # What nothing was set to is the default of the class, or missing altogether.
            part = getattr(self.strategy, name, None)
            if part is not getattr(Strategy, name, None) and part is not self._filled_in.get(name):
                given[name] = part
        return given

    # module and optimizers ------------------------------------------------------------------------

    def set_up(self, host: SetupHost) -> None:
        """All ranks. Set up the model, optimizers and loaders of a trainer, and restore its
        checkpoint.
        """
        strategy = self.strategy
        with strategy.init_context():
            host.configure_model()
        # An engine wants the optimizers together with the module. Elsewhere they come after it: the
        # set-up may replace parameters, and an optimizer of the old ones would train nothing.
        if Capability.JOINT_SETUP in strategy.capabilities and host.trains:
            optimizers, schedulers = host.configure_optimizers()
            scheduler = next(iter(schedulers), None)
            self.add_module_and_optimizers(host.module, optimizers, scheduler)
            strategy.lr_schedulers = schedulers
        else:
            self.add_module(host.module)
            if host.trains:
                optimizers, strategy.lr_schedulers = host.configure_optimizers()
                self.add_optimizers(optimizers)
        # The checkpoint last, into what is set up: a sharded one is read into this rank's parts.
        host.setup_dataloaders()
        host.restore()

    def add_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Set up a module and keep its handle.

        Raises:
            UnsupportedError: a second module, without `Capability.SEVERAL_MODULES`.
        """
        strategy = self.strategy
        if self.handles and Capability.SEVERAL_MODULES not in strategy.capabilities:
            raise UnsupportedError(
                f"{self._name} can set up one module, and this is the second. Put both into one "
                "nn.Module.",
                capability=Capability.SEVERAL_MODULES,
            )
        # before wrappers prefix names, and converting replaces parameters
        names = module_tree.parameter_names(module)
        self._guards.change_units(module)
        wrapped = required(
            strategy, "setup_module", strategy.setup_module(module), "the module, wrapped or not"
        )
        self._keep(module, wrapped, names)
        return wrapped

    def add_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """All ranks. Set up optimizers whose modules were added, and keep them.

        Raises:
            UnsupportedError: a second optimizer, without `Capability.SEVERAL_OPTIMIZERS`.
            ConfigurationError: an optimizer of other modules' parameters.
        """
        strategy = self.strategy
        self._check_number(len(strategy.optimizers) + len(optimizers))
        if self._replaced:
            for handle in self.handles:
                # an identity that was replaced may be that of another object by now
                handle.original_names.clear()
            for optimizer in optimizers:
                self._replaced.rebind(optimizer)
        optimizer_state.check_trained(optimizers, self.handles, strategy.world_size)
        added = [
            required(
                strategy, "setup_optimizer", strategy.setup_optimizer(optimizer), "an optimizer"
            )
            for optimizer in optimizers
        ]
        self._keep_optimizers(added)
        return added

    def add_module_and_optimizers(
        self, module: nn.Module, optimizers: Sequence[Optimizer], scheduler: object = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Set up everything at once and keep it."""
        strategy = self.strategy
        if Capability.JOINT_SETUP not in strategy.capabilities:
            return self.add_module(module), self.add_optimizers(optimizers), scheduler
        self._check_number(len(optimizers))
        names = module_tree.parameter_names(module)
        optimizer_state.check_trained(
            optimizers, [ModuleHandle(module, module, names)], strategy.world_size
        )
        self._guards.change_units(module)
        wrapped, added, scheduler = required(
            strategy,
            "setup_module_and_optimizers",
            cast("SetsUpJointly", strategy).setup_module_and_optimizers(
                module, list(optimizers), scheduler
            ),
            "the module, a list of optimizers, and the scheduler",
        )
        self._keep(module, wrapped, names)
        self._keep_optimizers(added)
        return wrapped, added, scheduler

    def move_module(self, module: nn.Module) -> None:
        """All ranks. Move parameters and buffers to the strategy's `root_device`, in place."""
        device = self.strategy.root_device
        # torch would walk through all for nothing
        if not module_tree.is_on(module, device):
            before = dict(module.named_parameters(remove_duplicate=False))
            module.to(device)
            # Devices that can't take over a parameter's memory have new objects in its place.
            self._replaced.remember(module, module_tree.tie_again(module, before).items())

    def handle_of(self, module: nn.Module | None = None) -> ModuleHandle:
        """The handle of a module, own or wrapped; of the last one that was set up if None is given.

        Raises:
            ConfigurationError: the module wasn't set up with this strategy.
        """
        for handle in reversed(self.handles):
            if module is None or module is handle.module or module is handle.wrapped:
                return handle
        known = ", ".join(type(handle.module).__name__ for handle in self.handles) or "nothing"
        name = "A module"
        if module is not None:
            name = type(module).__name__
        raise ConfigurationError(
            f"{name} was not set up with this {self._name}, which has set up {known}. With Fabric, "
            "call fabric.setup(module) first; in a Trainer, a strategy's own setup(trainer) ends "
            "in super().setup(trainer), or calls self.session.add_module(trainer.module)."
        )

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the optimizer's parameters by identity; see `Strategy.parameter_names`."""
        return optimizer_state.parameter_names(
            optimizer, [handle.parameter_names for handle in self.handles]
        )

    def forget(self) -> None:
        """Forget modules, optimizers and schedulers. `Strategy.release` calls it."""
        self.handles: list[ModuleHandle] = []
        self._guards.end()
        self.strategy.optimizers = []
        self.strategy.lr_schedulers = []
        self.weights: Weights | None = None
        self.compares_ranks = True
        self.buffers_stayed = False

    def refresh_modules(self) -> bool:
        """All ranks. Ask the strategy to, see `Strategy.refresh_modules`; what it has set up anew
        may be trained.
        """
        if not self.strategy.refresh_modules():
            return False
        for handle in self.handles:
            self._watch(handle.module)
        return True

    @property
    def compiles(self) -> bool:
        """True if the methods or parts of the next module that is added are compiled by torch."""
        return self.compiler is not None or self.unit_compiler is not None

    @property
    def ends_together(self) -> bool:
        """True if all ranks are at the end, so that `Strategy.release` may gather what it gives
        back to the user.

        False after an exception, and where a Fabric was collected or the process ends: each rank
        does that at a moment of its own.
        """
        return not self._ends_alone and sys.exc_info()[0] is None

    def release_alone(self) -> None:
        """One rank. Release the strategy, whose Fabric was collected."""
        self._ends_alone = True
        self.strategy.release()

    def tear_down_alone(self) -> None:
        """One rank. Tear the strategy down as the process ends; if that fails, its code isn't 0."""
        self._ends_alone = True
        try:
            self.strategy.teardown()
        except BaseException as error:  # also Ctrl-C
            from core.display import exit_code

            sys.excepthook(type(error), error, error.__traceback__)
            exit_code.fail()

    @property
    def _name(self) -> str:
        return type(self.strategy).__name__

    def _check_number(self, num_optimizers: int) -> None:
        if num_optimizers > 1 and Capability.SEVERAL_OPTIMIZERS not in self.strategy.capabilities:
            raise UnsupportedError(
                f"{self._name} sets up one optimizer, not {num_optimizers}. Use parameter groups, "
                "or another strategy.",
                capability=Capability.SEVERAL_OPTIMIZERS,
            )

    def _keep(self, module: nn.Module, wrapped: nn.Module, names: dict[int, str]) -> None:
        self.handles.append(ModuleHandle(module, wrapped, names, self.compiler))
        self.strategy.model = wrapped
        self._watch(module)

    def _watch(self, module: nn.Module) -> None:
        refreshes = type(self.strategy).refresh_modules is not Strategy.refresh_modules
        self._guards.watch_module(module, refreshes=refreshes)

    def _keep_optimizers(self, added: Sequence[Optimizer]) -> None:
        self.strategy.optimizers = [*self.strategy.optimizers, *added]
        self._guards.watch_optimizers(added)

    # steps ----------------------------------------------------------------------------------------

    run_training_step = default_step.run  # not a call around it: a step would pay for that

    def backward(
        self, loss: Tensor, weight: float | Tensor | None, run: Callable[[Tensor], None]
    ) -> None:
        """All ranks. Run backward in a loop by hand, for a loss that says what it weighs; see
        `Fabric.backward`.

        Args:
            loss: a mean over some items.
            weight: their number; None for a loss without one, after others that had one, which is
                an error.
            run: is called with what backward is to take.
        """
        optimizers = self.strategy.optimizers
        self._begin_weights(optimizers).backward(loss, weight, run, optimizers)

    def weigh(self, weight: float | Tensor) -> None:
        """All ranks. Weigh the loss of the running training step by the number of items that it is
        a mean over.
        """
        self._begin_weights().given = weight

    def _begin_weights(self, by_hand: Sequence[Optimizer] | None = None) -> Weights:
        if self.weights is None:
            from core.session.weights import Weights  # who gives no weight waits for none of it

            self.weights = Weights(self, by_hand)
        return self.weights

    def stepped(self, optimizer: Optimizer) -> None:
        """All ranks. Compare what ranks have alike, if it is time: with `JOINT_SETUP` the strategy
        says when, here.

        Raises:
            ReplicasDifferError: they differ.
        """
        if self._guards.alike is not None:
            self._guards.alike.stepped(optimizer)

    def scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        """All ranks. Multiply the gradients of the optimizer's parameters, or this rank's shards of
        them.
        """
        from core.session.weights import scale_gradients

        scale_gradients(optimizer, factor)

    # communication --------------------------------------------------------------------------------

    @property
    def has_peers(self) -> bool:
        """True if there are other processes, and collectives that reach them."""
        return self.strategy.world_size > 1 and Capability.COLLECTIVES in self.strategy.capabilities

    @property
    def collectives(self) -> Collectives:
        """The communication that a CheckpointIO needs."""
        return StrategyCollectives(self)

    # one module's or optimizer's state, as a strategy that changes nothing gives it ---------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """All ranks. The module's own state under the names of the user's own module."""
        return module_tree.whole_state(self.handle_of(module).module)

    def load_module_state(
        self, module: nn.Module, state: Mapping[str, object], *, strict: bool
    ) -> None:
        """All ranks. Load a state into the module, in place.

        Raises:
            CheckpointError: it doesn't fit; names and shapes that differ are listed.
        """
        mismatch.load(self.handle_of(module).module, state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's own state by parameter names, see
        `core.session.optimizer_state`.
        """
        return optimizer_state.to_named(
            optimizer.state_dict(), self.strategy.parameter_names(optimizer)
        )

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, object]) -> None:
        """All ranks. Load a state by parameter names into the optimizer, in place."""
        names = self.strategy.parameter_names(optimizer)
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        optimizer.load_state_dict(optimizer_state.to_positional(state, names, sizes))

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. Tensors of a saved optimizer state's shapes, which lie as the optimizer's
        parameters do.
        """
        # who reads no checkpoint waits for none of it
        from core.session.load_targets import optimizer_targets

        return optimizer_targets(self.strategy.parameter_names(optimizer), described, optimizer)
