"""A strategy with Lightning's names, and the check of subclasses, whose overrides core would never
call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core import ConfigurationError, Stage, Strategy
from core_lightning.decisions.overrides import RefusesOverrides
from core_lightning.utilities.nested_data import move_data_to_device

_LAYOUT = "Override get_module_state_dict and load_module_state_dict."
_OPTIMIZER_STATE = (
    "Override get_optimizer_state_dict(optimizer) and load_optimizer_state_dict(optimizer, state)."
)
STORAGE = "Give the Trainer a CheckpointIO: plugins=[YourCheckpointIO()]."
_MODULE = "Override the module's."
_LAUNCH = "core starts the processes; give the Trainer a ClusterEnvironment or a Launcher."
NEVER_CALLED = {
    **dict.fromkeys(("training_step", "validation_step", "test_step", "predict_step"), _MODULE),
    **dict.fromkeys(("save_checkpoint", "remove_checkpoint", "checkpoint_io"), STORAGE),
    **dict.fromkeys(("lightning_module_state_dict", "load_model_state_dict"), _LAYOUT),
    **dict.fromkeys(("optimizer_state", "lightning_restore_optimizer"), _OPTIMIZER_STATE),
    **dict.fromkeys(
        ("_configure_launcher", "set_world_ranks", "determine_ddp_device_ids", "launcher"), _LAUNCH
    ),
    **dict.fromkeys(
        ("configure_ddp", "_setup_model"),
        "Override setup_module(module), which returns the wrapper.",
    ),
    **dict.fromkeys(
        ("tensor_init_context", "model_sharded_context"), "Override init_context(*, empty=False)."
    ),
    "batch_to_device": "Override the module's transfer_batch_to_device.",
    "block_backward_sync": "Override no_backward_sync(module, enabled).",
    "connect": "Override setup_module(module).",
    "handles_gradient_accumulation": "Declare Capability.OWNS_ACCUMULATION in `capabilities`.",
    "model_to_device": "Override module_to_device(module).",
    "on_exception": "Write a Callback with on_exception.",
    "on_train_batch_start": "Write a Callback with on_train_batch_start.",
    "post_training_step": "Write a Callback with on_train_batch_end.",
    "setup_optimizers": "Override setup_optimizer(optimizer), or the module's "
    "configure_optimizers.",
    "setup_precision_plugin": "Override configure_precision(name).",
}
"""Methods of Lightning's strategies that have no meaning here, each with what takes its place."""


class StrategyNames(RefusesOverrides, Strategy):
    """Precedes a strategy's class. A subclass that overrides what is never called is refused when
    it is made.
    """

    lightning_module: Any = None  # of the Trainer's last stage
    handles_gradient_accumulation = False  # the Trainer does
    is_distributed = property(lambda self: self.world_size > 1, doc="True with several ranks.")
    num_processes = property(attrgetter("num_processes_per_node"), doc="Processes of this node.")

    def __init__(self, *given: Any, **options: Any) -> None:
        if options.get("start_method") == "popen":
            options["start_method"] = "subprocess"
        super().__init__(*given, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__ == __name__:
            return
        if "distributed_sampler_kwargs" in vars(cls):
            given = property(lambda self: self.distributed_sampler_kwargs["num_replicas"])
            cls.data_parallel_size = given  # type: ignore[method-assign, assignment]  # a property here too
            given = property(lambda self: self.distributed_sampler_kwargs["rank"])
            cls.data_parallel_rank = given  # type: ignore[method-assign, assignment]
        if (
            load := vars(cls).get("load_optimizer_state_dict")
        ) and "checkpoint" in inspect.signature(load).parameters:
            raise ConfigurationError(
                f"{cls.__name__}.load_optimizer_state_dict(checkpoint): {_OPTIMIZER_STATE}"
            )
        if (step := vars(cls).get("optimizer_step")) is not None:
            cls.optimizer_step = _counting(step)  # type: ignore[method-assign]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # a class of `named`, which can't be found by its name
        if type(self).__module__ == __name__:
            return _make_again, (type(self).__bases__[1],), self.__getstate__()
        return super().__reduce_ex__(protocol)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """The number of shares of the data, and this rank's. Meant to be overridden."""
        return {"num_replicas": super().data_parallel_size, "rank": super().data_parallel_rank}

    restore_checkpoint_after_setup = True  # core restores when everything is set up

    def process_dataloader(self, dataloader: Any) -> Any:
        """All ranks. Replace the loader. Meant to be overridden."""
        return dataloader

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All ranks. Replace the loader; see `core.Strategy.setup_dataloader`."""
        return self.process_dataloader(super().setup_dataloader(loader, stage))

    def pre_backward(self, closure_loss: Tensor) -> None:
        """All ranks, before each backward. Meant to be overridden."""

    def post_backward(self, closure_loss: Tensor) -> None:
        """All ranks, when gradients are there. Meant to be overridden."""

    def backward(self, loss: Tensor, module: nn.Module | None, **options: Any) -> None:
        """All ranks. Compute gradients; see `core.Strategy.backward`."""
        self.pre_backward(loss)
        super().backward(loss, module, **options)
        self.post_backward(loss)

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """The batch, on this rank's device or another."""
        return move_data_to_device(batch, self.root_device if device is None else device)

    def model_to_device(self) -> None:
        """All ranks. Move the module to this rank's device."""
        self.module_to_device(self.lightning_module)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """All ranks. The module's state under its own names; whole on rank 0."""
        return self.get_module_state_dict(self.lightning_module, layout="full")

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """All ranks. Restore the module from a checkpoint's `state_dict`."""
        self.load_module_state_dict(self.lightning_module, checkpoint["state_dict"], strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state; whole on rank 0."""
        return self.get_optimizer_state_dict(optimizer)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any] | None = None,
        model: Any = None,
        **_: Any,
    ) -> int:
        """All ranks. Step the optimizer; see `core.Strategy.optimizer_step`."""
        return super().optimizer_step(optimizer, closure)


_NAMED: dict[type[Strategy], Any] = {}


def named(base: type[Strategy]) -> Any:
    """The class of a strategy, with Lightning's names."""
    if issubclass(base, StrategyNames):
        return base
    if base not in _NAMED:
        own: dict[str, Any] = {"__module__": __name__, "__doc__": base.__doc__}
        own["__signature__"] = inspect.signature(base)
        own["uncalled"] = {
            name: way for name, way in NEVER_CALLED.items() if not hasattr(base, name)
        }
        kind: Any = type(base)
        _NAMED[base] = kind(base.__name__, (StrategyNames, base), own)
    return _NAMED[base]


def _make_again(base: type[Strategy]) -> Any:
    kind = named(base)
    return kind.__new__(kind)


def _counting(step: Callable[..., Any]) -> Callable[..., int]:
    """The override of `optimizer_step`, whose result has to be the number of updates that core
    counts.
    """

    @functools.wraps(step)
    def optimizer_step(self: Any, *arguments: Any, **options: Any) -> int:
        count = step(self, *arguments, **options)
        if not isinstance(count, int):
            raise ConfigurationError(
                f"{type(self).__name__}.optimizer_step returned {type(count).__name__}. Return "
                "what super().optimizer_step(optimizer, closure) returns: the number of updates."
            )
        return count

    return optimizer_step
