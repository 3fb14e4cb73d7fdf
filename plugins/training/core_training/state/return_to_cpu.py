"""The way of a module, and of the optimizers that are kept, back to the CPU when a stage is
over.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from core.data import map_leaves
from core_training.state.finished_fit import on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

    from core_training.run import Run


def return_to_cpu(run: Run) -> None:
    """All ranks, after teardown. Move what a stage leaves on the device, and let the accelerator
    free its memory.

    Shards, and tensors of a device that would make other parameters of them, stay: so do optimizers
    then, which know parameters by identity. After an exception all stays, since the device may be
    what has failed.
    """
    strategy = run.strategy
    module = run.module
    if strategy.root_device.type == "cpu":
        return
    if (
        run.options.keep_on_device
        or not strategy.launcher.calls_in_place
        or sys.exc_info()[0] is not None
    ):
        return
    tensors = [*module.parameters(), *module.buffers()]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return
    if any(tensor.is_meta or hasattr(tensor, "to_local") for tensor in tensors):
        return
    # `module.to` has to change tensors in place; those that only wrap another are swapped
    if not all(map(_gives_way, {tensor.device for tensor in tensors if not _wraps(tensor)})):
        return
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swaps or any(map(_wraps, tensors)))
    try:
        module.to("cpu")
    except RuntimeError:
        # a tensor that only wraps another, and that something else still refers to, such as a
        # replica
        with contextlib.suppress(RuntimeError):
            module.to(strategy.root_device)
        return
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    if run.finished_fit is not None:
        _move_states(run.finished_fit.optimizers)
    strategy.accelerator.teardown()


def _gives_way(device: torch.device) -> bool:
    """True if a tensor of the device can become one on the CPU, and stay the same object."""
    try:
        torch.empty(0, device=device).data = torch.empty(0)
    except (RuntimeError, TypeError):
        return False
    return True


def _wraps(tensor: Any) -> bool:
    return hasattr(tensor, "__tensor_flatten__")


def _move_states(optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        for entry in optimizer.state.values():
            if isinstance(entry, dict):
                entry.update(map_leaves(on_cpu, entry))
