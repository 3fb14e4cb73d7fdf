"""Torch's own profiler: operators, kernels, memory, and a trace to look at."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerAction, record_function

from core_training.profilers.profiler import Profiler

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path


class PyTorchProfiler(Profiler):
    """Runs `torch.profiler` over some training steps: `Trainer(profiler="pytorch")`.

    For each recorded cycle it writes a trace, `fit-profile-step5.pt.trace.json`, that
    https://ui.perfetto.dev and `chrome://tracing` show, with the trainer's actions and hooks as
    ranges and each step marked; and the operators that took most time go into the report. In `fit`
    a step is a training batch, and the validation that follows it belongs to the next; in other
    stages it is a batch of theirs.

    Args:
        dirpath: folder of the reports; by default that of the run's logger, or else
            `default_root_dir`.
        filename: begins their names.
        schedule: which steps to record, as made by `torch.profiler.schedule`. By default the first
            is left out, one warms up, three are recorded, and then no more.
        on_trace_ready: gets torch's profiler instead, when a cycle was recorded; no trace is
            written then.
        num_rows: operators that the report shows.
        options: go to `torch.profiler.profile`, such as `record_shapes=True`,
            `profile_memory=True`.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str = "profile",
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[torch.profiler.profile], Any] | None = None,
        num_rows: int = 20,
        **options: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        self._schedule, self._on_trace_ready = schedule, on_trace_ready
        self._num_rows, self._options = num_rows, options
        self._profile: torch.profiler.profile | None = None

    def _clear(self) -> None:
        self._ranges: dict[str, list[record_function]] = {}
        self._num_steps = 0
        self._table = ""
        self.trace_paths: list[Path] = []

    def setup(self, stage: str, folder: str | os.PathLike[str], rank: int) -> None:
        """All ranks. A stage begins: so does the schedule."""
        super().setup(stage, folder, rank)
        schedule = self._schedule or torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
        self._profile = torch.profiler.profile(
            schedule=schedule, on_trace_ready=self._export, **self._options
        )
        self._profile.start()

    def start(self, action: str) -> None:
        """The action begins: a range in the trace."""
        entered = record_function(action)
        entered.__enter__()
        self._ranges.setdefault(action, []).append(entered)

    def stop(self, action: str) -> None:
        """The action that began last under this name ends."""
        ranges = self._ranges.get(action)
        if not ranges:
            raise self._refuse_stop(action)
        ranges.pop().__exit__(None, None, None)

    def step(self) -> None:
        """All ranks. A batch is over: the schedule goes on."""
        if self._profile is None:
            return
        self._num_steps += 1
        with warnings.catch_warnings():
            # Each cycle is taken when it is over, so what torch warns of is what should happen.
            warnings.filterwarnings(
                "ignore", message=".*Profiler clears events at the end of each cycle"
            )
            self._profile.step()

    def teardown(self) -> None:
        """All ranks. The stage is over: a cycle that is being recorded ends early; write the
        report.
        """
        for ranges in self._ranges.values():
            while ranges:
                ranges.pop().__exit__(None, None, None)
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        super().teardown()

    def summary(self) -> str:
        """The operators of the last cycle that was recorded, by their own time."""
        return self._table or (
            f"Nothing was recorded: the run ended after {self._num_steps} steps, before the "
            "schedule's first recorded one. Pass schedule=torch.profiler.schedule(...) with a "
            "shorter wait and warmup, or run longer."
        )

    def describe(self) -> str:
        """The same, and where the traces are."""
        traces = [f"Trace written to {path}" for path in self.trace_paths]
        return "\n".join([super().describe(), *traces])

    def _export(self, profile: torch.profiler.profile) -> None:
        device = getattr(profile, "use_device", None) or "cpu"
        self._table = profile.key_averages().table(
            sort_by=f"self_{device}_time_total", row_limit=self._num_rows
        )
        if self._on_trace_ready is not None:
            self._on_trace_ready(profile)
            return
        path = self.report_path(f"-step{profile.step_num}.pt.trace.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(path))
        self.trace_paths.append(path)

    def __getstate__(self) -> dict[str, object]:
        # torch's profiler and its ranges can't go to another process; a stage begins with new ones
        # anyway.
        return {**self.__dict__, "_profile": None, "_ranges": {}}
