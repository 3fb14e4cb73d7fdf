"""One process with several devices: every step replicates the module, scatters the batch and
gathers what comes back.

torch's own documentation recommends a process a device instead; this is for where processes can't
be made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from core import Capability, ConfigurationError, Strategy, UnsupportedError
from core.strategies import MethodRouter, refuse_sparse_layers
from core_ddp import DDPStrategy
from core_dp.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


# A replica's loss would need its own weight among those of the others.
_LACKS = Capability.MANUAL_OPTIMIZATION | Capability.BIT_EXACT_RESUME | Capability.WEIGHTED_LOSSES


class DataParallelStrategy(Strategy):
    """Data parallelism in one process: torch's DataParallel over the devices of one node."""

    @property
    def capabilities(self) -> Capability:
        """The capabilities of one process. Replicas live for one forward, so a backward inside it
        would be lost.
        """
        return super().capabilities & ~_LACKS

    def check(self) -> None:
        """Refuse what DataParallel can't do.

        Raises:
            ConfigurationError: a device without replication, such as a CPU; or several nodes.
        """
        _refuse_device(self, alias="dp")
        if self.num_nodes > 1:
            raise ConfigurationError(
                f"strategy='dp' works in one process, and num_nodes={self.num_nodes} was asked "
                "for. Use strategy='ddp2' (dp on each node) or strategy='ddp'."
            )

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert the module, move it to the first device, and wrap it.

        Raises:
            ModuleError: a layer gives sparse gradients, which DataParallel doesn't add up.
        """
        _refuse_compiler(self, alias="dp")
        refuse_sparse_layers(self, module)
        super().setup_module(module)
        self.model = Replicas(MethodRouter(module), device_ids=_indices(self))
        return self.model

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """The method, run on every device with its part of the batch; losses are averaged over
        devices.
        """
        wrapper = self.session.handle_of(module).wrapped
        call = _router_in(wrapper).route(wrapper, name)
        return call if name == "forward" else _averaged(call)

    def rank_state_dict(self) -> dict[str, Any] | None:
        """The random state of the devices beside the first, on which replicas draw too."""
        return _random_states(self)

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it, as far as there are such devices."""
        _restore_random_states(self, state)


class DDP2Strategy(DDPStrategy):
    """One process a node: DataParallel over the node's devices, DistributedDataParallel over the
    nodes.
    """

    interactive_alias: str | None = None

    @property
    def capabilities(self) -> Capability:
        """The capabilities of ddp, without what replicas of one forward can't do; see
        `DataParallelStrategy`.
        """
        return super().capabilities & ~_LACKS

    def check(self) -> None:
        """Refuse a device without replication, such as a CPU.

        Raises:
            ConfigurationError: with the alias to use instead.
        """
        _refuse_device(self, alias="ddp2")
        super().check()

    @property
    def num_processes_per_node(self) -> int:
        """One."""
        return 1

    @property
    def root_device(self) -> torch.device:
        """The first of the node's devices, which holds the parameters."""
        return self.parallel_devices[0]

    def configure_ddp(self) -> None:
        """Insert DataParallel between the router and DistributedDataParallel."""
        _refuse_compiler(self, alias="ddp2")
        self.model = Replicas(self.model, device_ids=_indices(self))
        super().configure_ddp()

    def rank_state_dict(self) -> dict[str, Any] | None:
        """All ranks. The state that `ddp` keeps, and the random state of the devices beside the
        first.
        """
        own, random = super().rank_state_dict(), _random_states(self)
        return None if own is None and random is None else {"ddp": own, "devices": random}

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks. Restore both."""
        if state["ddp"] is not None:
            super().load_rank_state_dict(state["ddp"])
        if state["devices"] is not None:
            _restore_random_states(self, state["devices"])

    def ddp_device_ids(self) -> list[int] | None:
        """None: DataParallel moves the inputs."""
        return None

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """The method through both wrappers; losses are averaged over the node's devices."""
        call = super().step_callable(name, module)
        return _averaged(call) if name == "training_step" else call


def _random_states(strategy: Strategy) -> dict[str, Any] | None:
    """None where there is one device, or none of them has a generator of its own."""
    states = [
        strategy.accelerator.get_rng_state(device) for device in strategy.parallel_devices[1:]
    ]
    return {"random": states} if any(state is not None for state in states) else None


def _restore_random_states(strategy: Strategy, saved: Mapping[str, Any]) -> None:
    for device, state in zip(strategy.parallel_devices[1:], saved["random"], strict=False):
        if state is not None:
            strategy.accelerator.set_rng_state(state, device)


def _refuse_compiler(strategy: Strategy, *, alias: str) -> None:
    if strategy.session.compiles:
        raise UnsupportedError(
            f"strategy={alias!r} makes new replicas of the module in each step, which "
            "torch.compile can't follow. Use strategy='ddp', or leave out compile."
        )


def _refuse_device(strategy: Strategy, *, alias: str) -> None:
    device = strategy.parallel_devices[0]
    if device.type in ("cpu", "mps"):
        raise ConfigurationError(
            f"strategy={alias!r} replicates a module over several devices of one process, which "
            f"torch can't do on {device.type!r}. Use strategy='ddp': one process a device."
        )


def _indices(strategy: Strategy) -> list[int]:
    return [device.index for device in strategy.parallel_devices]


def _router_in(wrapper: nn.Module) -> MethodRouter:
    return next(child for child in wrapper.modules() if isinstance(child, MethodRouter))


def _averaged(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, with the losses that were gathered from the devices averaged to one scalar."""

    def averaged(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        if isinstance(output, Tensor):
            return output.mean()
        if isinstance(output, dict) and isinstance(output.get("loss"), Tensor):
            return {**output, "loss": output["loss"].mean()}
        return output

    return averaged
