"""A profiler that counts the runs of each action, and adds up their time."""

from __future__ import annotations

import time

from core_training.profilers.profiler import Profiler


class SimpleProfiler(Profiler):
    """Counts and times each action, and prints a table: `Trainer(profiler="simple")`.

    Times are those of the host: work that a GPU has only been handed counts where the host waits
    for it. An action's time includes that of the actions within it, and costs some 1 µs to take.

    Args:
        dirpath: folder of the reports; by default that of the run's logger, or else
            `default_root_dir`.
        filename: begins their names: `fit-profile.txt`.
    """

    def _clear(self) -> None:
        self._began_ns = self._ended_ns = time.perf_counter_ns()
        self._running: dict[str, list[int]] = {}
        self._measured: dict[str, list[int]] = {}

    def start(self, action: str) -> None:
        """The action begins."""
        self._running.setdefault(action, []).append(time.perf_counter_ns())

    def stop(self, action: str) -> None:
        """The action that began last under this name ends."""
        now, began = time.perf_counter_ns(), self._running.get(action)
        if not began:
            raise self._refuse_stop(action)
        measured = self._measured.setdefault(action, [0, 0])
        measured[0] += 1
        measured[1] += now - began.pop()

    def teardown(self) -> None:
        """All ranks. The stage is over: write the report."""
        self._ended_ns = time.perf_counter_ns()
        super().teardown()

    def summary(self) -> str:
        """A row an action, by total time."""
        whole_ns = max(self._ended_ns - self._began_ns, 1)
        ranked = sorted(self._measured.items(), key=lambda item: item[1][1], reverse=True)
        whole = ("the whole run", [1, whole_ns])
        width = max(len(action) for action, _ in [*ranked, whole])
        lines = [f"{'action':{width}}     calls       mean ms     total s  % of run"]
        for action, (calls, total) in [*ranked, whole]:
            mean_ms, total_s, share = total / calls / 1e6, total / 1e9, 100 * total / whole_ns
            lines.append(
                f"{action:{width}}  {calls:8}  {mean_ms:12.3f}  {total_s:10.3f}  {share:8.1f}"
            )
        rule = "-" * len(lines[0])
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])
