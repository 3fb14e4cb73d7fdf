"""The memory that was planned beside the memory that a run has."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from core import ConfigurationError
from core.callbacks import Callback
from core.cli import size_text
from core_plan.table import kinds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from core import Trainer

__all__ = ["PlannedMemory", "held_bytes"]


class PlannedMemory(Callback):
    """Logs the planned memory beside the real one, and notes what a rank had when its memory ran
    out.

    `device/planned_bytes` is logged with the peaks of `Accelerator.memory_stats`, such as
    `device/peak_allocated_bytes`, every `log_every_n_steps`. A `torch.OutOfMemoryError` gets a
    note: what parameters, gradients and optimizer take on this rank, what was planned, and what to
    try.
    """

    leaves_traces = True

    def __init__(self, plans: str | Path | None = None, strategy: str | None = None) -> None:
        """Create the callback.

        Args:
            plans: what `core plan --json` has printed, as a file. None: nothing was planned.
            strategy: whose plan it is, as it stands in the file. None: the only one there.

        Raises:
            ConfigurationError: the file can't be read, or has no such plan.
        """
        self._plan = None if plans is None else _read(Path(plans), strategy)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Note where training begins."""
        self._every, self._step_seen = trainer.options.log_every_n_steps, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if this step's metrics are logged."""
        step, before = trainer.global_step, self._step_seen
        self._step_seen = step
        if (
            self._plan is None
            or step // self._every == before // self._every
            or not trainer.is_global_zero
        ):
            return
        strategy = trainer.strategy
        stats = strategy.accelerator.memory_stats(strategy.root_device)
        values = {name: value for name, value in stats.items() if "peak" in name}
        values["planned_bytes"] = float(self._plan["peak_bytes"])
        trainer.log_metrics({f"device/{name}": value for name, value in values.items()}, step)

    def on_exception(self, trainer: Trainer, module: nn.Module, exception: BaseException) -> None:
        """Add the note."""
        if isinstance(exception, torch.OutOfMemoryError):
            exception.add_note("\n".join(_note(trainer, self._plan)))


def held_bytes(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
    """Bytes of parameters, gradients, buffers and optimizer state that this rank has on its
    device.
    """
    kept = [
        value for each in optimizers for state in each.state.values() for value in state.values()
    ]
    gradients = [each.grad for each in module.parameters()]
    sizes = {
        "parameters": _size(module.parameters()),
        "gradients": _size(gradients),
        "optimizer": _size(kept),
        "buffers": _size(module.buffers()),
    }
    return {kind: size for kind, size in sizes.items() if size}


def _size(values: Iterable[Any]) -> int:
    tensors = [
        each.to_local() if isinstance(each, DTensor) else each
        for each in values
        if isinstance(each, torch.Tensor)
    ]
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage()
        for each in tensors
        if not each.is_meta
    }
    return sum(storage.nbytes() for storage in storages.values())


def _note(trainer: Trainer, plan: Mapping[str, Any] | None) -> Iterable[str]:
    strategy = trainer.strategy
    handles = strategy.session.handles
    held = held_bytes(torch.nn.ModuleList([each.module for each in handles]), strategy.optimizers)
    total, room = sum(held.values()), None
    if strategy.root_device.type == "cuda":
        room = torch.cuda.get_device_properties(strategy.root_device).total_memory
        held["activations and what is transient"] = (
            torch.cuda.memory_allocated(strategy.root_device) - total
        )
    yield f"Rank {strategy.global_rank} had: {kinds_text(held) or 'nothing yet'}."
    if plan is not None:
        yield (
            f"Planned for {plan['strategy']}: {size_text(plan['peak_bytes'])} "
            f"({kinds_text(plan['memory'])})."
        )
        if change := plan.get("change"):
            yield (
                f"By the plan it fits with {change['what']}: "
                f"{size_text(change['plan']['peak_bytes'])}."
            )
            return
    devices = -(-strategy.world_size // strategy.num_nodes)
    size = "SIZE" if room is None else f"{room // 2**20}MiB"
    nodes = f" --num-nodes {strategy.num_nodes}" if strategy.num_nodes > 1 else ""
    program, arguments = _program()
    yield (
        f"`core plan {program} --devices {devices}{nodes} --memory {size}{arguments}` says what "
        "would make it fit."
    )


def _program() -> tuple[str, str]:
    """The script of this process, and its arguments after `--`, as they are written in a shell."""
    main = sys.modules["__main__"]
    # python -m has one
    path = None if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    if path is None or not sys.argv or os.path.abspath(sys.argv[0]) != os.path.abspath(path):
        return "PROGRAM", ""
    return shlex.quote(sys.argv[0]), f" -- {shlex.join(sys.argv[1:])}" if sys.argv[1:] else ""


def _read(path: Path, strategy: str | None) -> dict[str, Any]:
    try:
        plans = [
            each
            for each in json.loads(path.read_text(encoding="utf-8"))["plans"]
            if each.get("failure") is None
        ]
        found = [each for each in plans if strategy in (None, each["strategy"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} isn't what `core plan --json` prints: {error}") from error
    if len(found) != 1:
        names = ", ".join(repr(each["strategy"]) for each in plans) or "none"
        raise ConfigurationError(
            f"PlannedMemory(strategy={strategy!r}): {path} has plans for {names}. Name one of them."
        )
    plan: dict[str, Any] = found[0]
    return plan
