"""A profiler that counts the runs of each action, and adds up their time."""

from __future__ import annotations

import time

from core_training.profilers.stage_profiler import StageProfiler

_HEADER = ("action", "calls", "mean ms", "total s", "% of run")


class SimpleProfiler(StageProfiler):
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
        now = time.perf_counter_ns()
        if not (began := self._running.get(action)):
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
        rows = [
            (
                action,
                f"{calls}",
                f"{total / calls / 1e6:.3f}",
                f"{total / 1e9:.3f}",
                f"{100 * total / whole_ns:.1f}",
            )
            for action, (calls, total) in ranked
        ]
        last = ("the whole run", "1", f"{whole_ns / 1e6:.3f}", f"{whole_ns / 1e9:.3f}", "100.0")
        return _to_table([_HEADER, *rows, last])


def _to_table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])
