"""Finds the rank that slows all others."""

from __future__ import annotations

import json
import math
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core.callbacks import Callback
from core.contract import Capability, ConfigurationError, UnsupportedError
from core.trainer import warn_caller
from core_resilience.line_sampler import LineSampler
from core_resilience.measured_step import MeasuredStep
from core_resilience.own_time import PHASES, OwnTime
from core_resilience.rank_times import NUM_WINDOWS, Behind, PictureOfRanks, RankTimes
from core_resilience.straggler import Straggler

if TYPE_CHECKING:
    import os

    from torch import Tensor, nn

    from core import Trainer

_FILE = "ranks.json"
_WRITES_EVERY_S = 30.0
_WAITS = (
    "reduce",
    "all_gather",
    "broadcast",
    "barrier",
    "gather_objects",
    "reduce_boolean_decision",
)
_WAITS_OF_LINE = ("barrier", "broadcast_object", "gather_objects")


class StragglerDetection(Callback):
    """Names the rank that is behind the others for long, in which phase of a step, and at which
    line.

    Ranks that train together all have the same time of a step: they wait for the slowest. Each rank
    measures what it does before it waits, by phase. Every so many steps all exchange these few
    numbers, and compare them with each other and with how they change. A run of one process has
    nothing to compare.

    | phase | time of |
    | --- | --- |
    | `data` | from one batch to the next: waiting for data, logging |
    | `forward` | `training_step` |
    | `backward` | until the rank has its gradients, and not until the others have theirs |
    | `optimizer` | the optimizer's step |
    | `hooks` | clipping and other callbacks |

    Those three in the middle are the wall's time under `ddp`, and the GPU's there where it has one.
    Under strategies that communicate within forward and backward, such as fsdp, these two are CPU
    time of the thread, and not measured on a GPU; `hooks` isn't either. With manual optimization,
    and engines that step by themselves, `data` is measured alone. Time in which ranks wait for each
    other in methods of the strategy never counts.

    Attributes:
        stragglers: all that were named, oldest first.
        seconds: of each rank in each phase of a batch in the last window, by rank.
    """

    runs_last = True
    leaves_traces = True

    def __init__(
        self,
        *,
        behind: float = 0.05,
        every_n_steps: int = 20,
        every_s: float = 4.0,
        dirpath: str | os.PathLike[str] | None = None,
    ) -> None:
        """Create the callback.

        Args:
            behind: share of a step that a rank takes longer than the others to be named.
            every_n_steps: batches of a window, after which ranks exchange their times, and a rank
                is judged by eight windows.
            every_s: seconds of a window at least, so that windows of short steps have more batches.
            dirpath: folder of `ranks.json`, which `core report` draws; by default that of the run's
                logger, if it has one.

        Raises:
            ConfigurationError: arguments that can't be met.
        """
        if not 0 < behind < math.inf or every_n_steps < 1 or every_s < 0:
            raise ConfigurationError(
                f"StragglerDetection(behind={behind!r}, every_n_steps={every_n_steps!r}, "
                f"every_s={every_s!r}): expected a share above 0, 1 step or more, and no negative "
                "time."
            )
        self.behind, self.every_n_steps, self.every_s, self._dirpath = (
            behind,
            every_n_steps,
            every_s,
            dirpath,
        )
        self.reset_for_fit()
        self._own: OwnTime | None = None
        self._step: MeasuredStep | None = None
        self._sampler: LineSampler | None = None

    def reset_for_fit(self) -> None:
        """No rank was seen yet."""
        self.stragglers: list[Straggler] = []
        self.seconds: list[dict[str, float]] = []

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse ranks that don't do the same work.

        Raises:
            UnsupportedError: the strategy's.
        """
        strategy = trainer.strategy
        if Capability.ELASTIC in strategy.capabilities:
            raise UnsupportedError(
                "StragglerDetection compares ranks that step together, and those of "
                f"{type(strategy).__name__} come and go, each with steps of its own. Leave the "
                "callback out, or use a strategy such as ddp or fsdp.",
                capability=Capability.ELASTIC,
            )

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Begin to measure.

        Raises:
            UnsupportedError: ranks that share a model's work, and so have different work.
        """
        strategy = trainer.strategy
        if strategy.world_size == 1:
            return
        if strategy.data_parallel_size != strategy.world_size:
            raise UnsupportedError(
                "StragglerDetection compares ranks that do the same work, each on its own "
                f"samples, and of {strategy.world_size} ranks of {type(strategy).__name__} only "
                f"{strategy.data_parallel_size} do. Leave the callback out."
            )
        self._hosts = strategy.broadcast(strategy.gather_objects(socket.gethostname()))
        self._times, self._picture = RankTimes(self.behind), PictureOfRanks()
        self._named: set[int] = set()
        self._suspects: dict[int, str] = {}
        self._num_batches, self._window, self._num_windows = 0, self.every_n_steps, 0
        self._began_s = time.monotonic()
        self._begins_at, self._written_s = trainer.global_step, time.monotonic()
        self._own = OwnTime()
        self._own.leave_out(strategy, _WAITS)
        self._own.leave_out_of(strategy, "background_collectives", _WAITS_OF_LINE)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. The end of an epoch and the opening of a loader are no part of a step."""
        self._drop()

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. The batch is there."""
        step, own = trainer.running_step, self._own
        if own is None or step is None:
            return
        own.begin(None)
        if self._step is None or self._step.step is not step:
            self._leave_step()
            self._step = MeasuredStep(step, own, trainer.strategy, module)
        self._step.begin()

    def on_before_backward(self, trainer: Trainer, module: nn.Module, loss: Tensor) -> None:
        """All ranks. Forward is over."""
        if self._step is not None:
            self._step.begin_backward(loss)

    def on_after_backward(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Gradients of all ranks are there."""
        if self._step is not None:
            self._step.end_backward()

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Exchange times, if a window is full."""
        if self._own is None:
            return
        self._begin(None)
        self._num_batches += 1
        if self._num_batches >= self._window:
            self._end_window(trainer, self._own)
            self._num_batches, self._began_s = 0, time.monotonic()
        self._begin("data")

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. A validation is no part of a step."""
        self._drop()

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """All ranks. A save is no part of a step: one rank writes, or each waits for all."""
        self._drop()

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Write the file, and release the run."""
        self._release(trainer)

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """All ranks. Likewise after an error."""
        self._release(trainer)

    def _begin(self, phase: str | None) -> None:
        if self._own is not None:
            self._own.begin(phase)

    def _drop(self) -> None:
        if self._own is not None:
            self._own.drop()

    def _end_window(self, trainer: Trainer, own: OwnTime) -> None:
        """All ranks. Exchange the window's times, and judge."""
        strategy, num_batches, first, step = (
            trainer.strategy,
            self._num_batches,
            self._begins_at,
            trainer.global_step,
        )
        passed_s = (time.monotonic() - self._began_s) / num_batches
        sent = torch.tensor([*own.take(num_batches), passed_s], device=strategy.root_device)
        gathered = strategy.all_gather(sent).cpu().double()
        self._window = max(
            self.every_n_steps, math.ceil(self.every_s / max(float(gathered[:, -1].max()), 1e-6))
        )
        self._begins_at, self._num_windows = step, self._num_windows + 1
        if self._num_windows == 1:  # the first steps set things up
            return
        seconds = gathered[:, :-1]
        self.seconds = [dict(zip(PHASES, each, strict=True)) for each in seconds.tolist()]
        self._times.add(first, seconds)
        self._picture.add(first, step, seconds)
        trainer.log_metrics({"stragglers/behind": max(self._times.shares())}, step)
        self._judge(trainer, own)
        if time.monotonic() - self._written_s >= _WRITES_EVERY_S:
            self._write(trainer)

    def _judge(self, trainer: Trainer, own: OwnTime) -> None:
        """All ranks, which have the same numbers, and so decide alike."""
        self._named -= {
            rank for rank, share in enumerate(self._times.shares()) if share < self.behind / 2
        }
        found = [each for each in self._times.find() if each.rank not in self._named]
        suspects = {
            each.rank: PHASES[each.phase] for each in [*self._times.find(NUM_WINDOWS // 2), *found]
        }
        for each in found:
            if each.rank in self._suspects:  # its line was looked for, for a window at least
                self._name(each, trainer)
        self._suspects = {
            rank: phase for rank, phase in suspects.items() if rank not in self._named
        }
        wanted = self._suspects.get(trainer.strategy.global_rank)
        if self._sampler is not None and self._sampler.wanted != wanted:
            self._end_sampler()
        if wanted is not None and self._sampler is None:
            self._sampler = LineSampler(lambda: own.phase, wanted)

    def _name(self, found: Behind, trainer: Trainer) -> None:
        """All ranks. Ask the rank for its line, and name it."""
        self._named.add(found.rank)
        own = (
            self._end_sampler(PHASES[found.phase])
            if trainer.strategy.global_rank == found.rank
            else ""
        )
        straggler = Straggler(
            rank=found.rank,
            host=self._hosts[found.rank],
            phase=PHASES[found.phase],
            line=trainer.strategy.broadcast(own, src=found.rank),
            share=found.share,
            step=trainer.global_step,
            since=found.since,
            own_s=found.seconds,
            others_s=found.others,
            before_s=found.before,
        )
        self.stragglers.append(straggler)
        self._write(trainer)
        if trainer.is_global_zero:
            warn_caller(f"StragglerDetection: {straggler}")

    def _end_sampler(self, phase: str = "") -> str:
        """End the look at lines. The line, if they were looked at in this phase."""
        sampler, self._sampler = self._sampler, None
        line = "" if sampler is None else sampler.end()
        return line if sampler is not None and sampler.wanted == phase else ""

    def _leave_step(self) -> None:
        if self._step is not None:
            self._step.leave()
        self._step = None

    def _release(self, trainer: Trainer) -> None:
        self._end_sampler()
        self._leave_step()
        if self._own is not None:
            self._own.release()
            self._own = None
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        """Rank 0 writes the file, if the run has a folder."""
        self._written_s = time.monotonic()
        if (
            not trainer.is_global_zero
            or not self._picture.columns
            or not (self._dirpath or trainer.loggers)
        ):
            return
        folder = Path(self._dirpath or trainer.log_dir)
        columns = [
            {
                "first_step": first,
                "last_step": last,
                "seconds": [[float(f"{value:.4g}") for value in row] for row in seconds.tolist()],
            }
            for first, last, seconds in self._picture.columns
        ]
        content = {
            "phases": PHASES,
            "rows": [f"rank {rank}, {host}" for rank, host in enumerate(self._hosts)],
            "columns": columns,
            "named": [str(each) for each in self.stragglers],
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FILE).write_text(json.dumps(content), encoding="utf-8")
