"""The parts that a strategy is made of: devices, processes, precision and storage, and what was set
up with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.errors import ConfigurationError, NotYetChosenError
from core.contract.precision import Precision
from core.contract.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from core.contract.accelerator import Accelerator
    from core.contract.checkpoint_io import CheckpointIO
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.launcher import Launcher


class StrategyParts(World):
    """The attributes of a strategy. The user passes some of them, `resolve` chooses the others, and
    the session keeps in them what was set up.
    """

    launcher_name: str = "in_place"
    """Alias of the launcher that makes the processes when the cluster has not."""

    interactive_alias: str | None = None
    """Alias to recommend where this strategy's launcher can't work, such as in a notebook."""
    own_activation_option: str = ""
    """The strategy's own option that checkpoints or offloads activations; empty if none was
    passed.
    """
    device_types: tuple[str, ...] = ()
    """Types of torch devices that it trains on, such as `"cuda"`; others are refused before
    `check`. Empty: all.
    """
    updates_per_batch: int = 1
    """Updates of the parameters in one batch, from `check` on; more than one only with
    `Capability.COMPILED_STEP`.
    """

    accelerator: Accelerator
    """The kind of device."""
    parallel_devices: Sequence[torch.device] = ()
    """The devices of this node that the run uses."""
    num_nodes: int = 1
    """Number of machines."""
    cluster_environment: ClusterEnvironment | None = None
    """The environment that started the processes; None for a strategy of one process."""
    launcher: Launcher
    """The launcher that makes the processes; chosen by `launcher_name`."""
    precision_plugin: Precision = Precision()
    """The precision: the number formats to compute in."""
    checkpoint_io: CheckpointIO
    """The CheckpointIO that stores the checkpoints."""
    device_mesh: torch.distributed.device_mesh.DeviceMesh | None = None
    """All devices of the run by named axes, from `setup_environment` on; None for a strategy that
    has no such axes.
    """

    model: torch.nn.Module
    """The module that was set up last, as it was wrapped."""
    optimizers: list[torch.optim.Optimizer]
    """The optimizers that were set up, in order."""
    lr_schedulers: list[Any]
    """The schedulers of the run, in order; stepped by the core unless
    `Capability.OWNS_SCHEDULER`.
    """

    if not TYPE_CHECKING:  # for type checkers every other name would be an attribute, too

        def __getattr__(self, name: str) -> Any:
            """Raise for an argument that isn't chosen yet, with how it is chosen."""
            if name in ("accelerator", "checkpoint_io", "launcher"):
                raise NotYetChosenError(
                    f"{type(self).__name__} has no {name} yet. Give the strategy to a Fabric or "
                    "Trainer, which chooses it: Fabric(strategy=..., accelerator=...)."
                )
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)

    @property
    def root_device(self) -> torch.device:
        """The device of this rank, where its model and batches are."""
        return self._device_at(0)

    def _device_at(self, index: int) -> torch.device:
        try:
            return self.parallel_devices[index]
        except IndexError:
            raise ConfigurationError(
                f"{type(self).__name__} has {len(self.parallel_devices)} devices on this node, so "
                f"that there is none for local rank {index}. Pass parallel_devices=..., or give "
                "the strategy to a Fabric or Trainer, which chooses them: Fabric(strategy=..., "
                "devices=...)."
            ) from None

    @property
    def num_devices(self) -> int:
        """Number of devices in the whole run, on all nodes."""
        return max(1, len(self.parallel_devices)) * self.num_nodes
