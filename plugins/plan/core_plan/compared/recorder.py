"""Measures one run of the program in each of its ranks, and ends it."""

from __future__ import annotations

import atexit
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core.data import size_of
from core_plan.compared.traffic import Traffic
from core_plan.compared.weights import WeightRecord, disturb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core import Strategy
    from core_plan.compared.task import Task


class RunRecorder:
    """The common part of both kinds of programs; a callback or a Fabric calls it. All ranks, each
    its own.

    1. `begin`, before the first step.
    2. `add_batch` for each batch, `end_step` after each optimizer step. The last step ends the
       program.
    3. `end`, where the program's own steps are over before that.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.num_steps = 0
        self.strategy: Strategy | None = None
        self._weights: Callable[[], Iterable[Any]] = tuple
        self._save: Callable[[str], None] = lambda path: None
        self._modules: list[torch.nn.Module] = []
        self._record: dict[str, Any] = {"marks": [], "losses": [], "pid": os.getpid()}
        self._num_samples = 0
        self._paused_s = 0.0
        self._pause_began_s = 0.0
        self._losses: list[tuple[torch.Tensor, int]] = []
        self._traffic: Traffic | None = None
        self._weight_record = WeightRecord(task) if task.weight_steps else None
        atexit.register(self._write_alone)

    def begin(
        self,
        strategy: Strategy,
        modules: list[torch.nn.Module],
        weights: Callable[[], Iterable[Any]],
        save: Callable[[str], None],
    ) -> None:
        """Before the first step.

        Args:
            strategy: that has set up.
            modules: the user's own.
            weights: makes a stream of the weights of each.
            save: a checkpoint.
        """
        self.strategy, self._modules, self._weights, self._save = strategy, modules, weights, save
        self._record["has_dropout"] = any(
            _drops(part) for module in modules for part in module.modules()
        )
        self._take_weights()
        if self.task.disturbed:
            for optimizer in strategy.optimizers:
                disturb(optimizer)

    def add_batch(self, loss: Any, num_samples: int) -> None:
        """A batch was trained.

        Args:
            loss: scalar, or something else, which isn't recorded.
            num_samples: of this rank.
        """
        self._num_samples += num_samples
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append((loss.detach().reshape(()), num_samples))

    def end_step(self) -> None:
        """All ranks, after an optimizer step.

        Raises:
            SystemExit: it was the last.
        """
        self.num_steps += 1
        if self._traffic is not None:
            self._end_counted_step()
            return
        if self.num_steps in (1, *self.task.marks):
            self._read_clock()
        self._close_losses()
        self._take_weights()
        if self.num_steps == self.task.steps:
            self._measure_memory()
            self._write()
            if not self.task.extras:
                raise SystemExit(0)
            self._traffic = Traffic()
            self._traffic.__enter__()  # type: ignore[no-untyped-call]  # as its __init__

    def end(self) -> None:
        """All ranks, where there are no more steps.

        Raises:
            SystemExit: always, since what comes after training isn't measured.
        """
        if self._traffic is not None:
            self._end_counted_step()
        self._close_losses()
        self._measure_memory()
        self._write()
        raise SystemExit(0)

    def pause(self) -> None:
        """The clock stops, for a validation."""
        self._wait()
        self._pause_began_s = time.perf_counter()

    def go_on(self) -> None:
        """The clock goes on."""
        self._wait()
        self._paused_s += time.perf_counter() - self._pause_began_s

    def _read_clock(self) -> None:
        self._wait()
        if self.num_steps == 1:
            self._record["startup_s"] = time.time() - self.task.launched_at
        if self.num_steps in self.task.marks:
            seconds = time.perf_counter() - self._paused_s
            self._record["marks"].append((self.num_steps, seconds, self._num_samples))

    def _wait(self) -> None:
        assert self.strategy is not None
        self.strategy.accelerator.synchronize(self.strategy.root_device)

    def _close_losses(self) -> None:
        if self._losses:
            self._record["losses"].append(self._losses)
            self._losses = []

    def _take_weights(self) -> None:
        if self._weight_record is None or self.num_steps not in self.task.weight_steps:
            return
        assert self.strategy is not None
        buffers = frozenset(
            name if number == 0 else f"{number}.{name}"
            for number, module in enumerate(self._modules)
            for name, _ in module.named_buffers()
        )
        self._weight_record.take(
            self.num_steps, self._weights(), buffers, self.strategy.is_global_zero
        )

    def _measure_memory(self) -> None:
        assert self.strategy is not None
        stats = self.strategy.accelerator.memory_stats(self.strategy.root_device)
        peak = stats.get("peak_allocated_bytes", stats.get("peak_resident_bytes"))
        if peak is None:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        self._record["peak_memory_bytes"] = int(peak)
        self._record["memory_of"] = "device" if "peak_allocated_bytes" in stats else "process"

    def _end_counted_step(self) -> None:
        assert self._traffic is not None
        self._traffic.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # likewise
        self._record["sent_bytes"] = dict(self._traffic.sent)
        self._traffic = None
        self._write()
        if self.task.checkpoint:
            self._measure_checkpoint()
            self._write()
        raise SystemExit(0)

    def _measure_checkpoint(self) -> None:
        assert self.strategy is not None
        collectives = self.strategy.session.collectives
        path = collectives.broadcast_object(self.task.checkpoint)  # nodes have folders of their own
        began = time.perf_counter()
        self._save(path)
        collectives.barrier()
        self._record["checkpoint_s"] = time.perf_counter() - began
        self._record["checkpoint_bytes"] = _size_of(Path(path))

    def _write(self) -> None:
        """All ranks. Write what all have, which each node's first rank keeps for its node."""
        assert self.strategy is not None
        collectives = self.strategy.session.collectives
        own = self._own()
        every = (
            [own]
            if collectives.size == 1
            else collectives.broadcast_object(collectives.gather_objects(own))
        )
        _write_file(self._path(), every)

    def _write_alone(self) -> None:
        """At exit, where nothing was written yet: what this rank has, as far as it came."""
        if self.strategy is not None and not self._path().exists():
            self._close_losses()
            self._measure_memory()
            _write_file(self._path(), [self._own()])

    def _own(self) -> dict[str, Any]:
        assert self.strategy is not None
        strategy = self.strategy
        losses = [[(float(loss), size) for loss, size in step] for step in self._record["losses"]]
        distances = self._weight_record.distances if self._weight_record is not None else {}
        return {
            **self._record,
            "losses": losses,
            "rank": strategy.global_rank,
            "num_shards": strategy.data_parallel_size,
            "world_size": strategy.world_size,
            "num_steps": min(self.num_steps, self.task.steps),
            "samples_per_step": self._num_samples / max(1, self.num_steps),
            "distances": distances,
        }

    def _path(self) -> Path:
        assert self.strategy is not None
        return Path(self.task.folder, f"rank-{self.strategy.global_rank}.json")


def _write_file(path: Path, value: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(path)


def _drops(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0


def _size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file())


def samples_in(batch: object) -> int:
    """Samples of a batch; one whose size is unknown counts as 1."""
    return size_of(batch) or 1
