"""Metrics as rows of a CSV file."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import time
from typing import TYPE_CHECKING, Any

from core.contract.errors import ConfigurationError
from core.loggers.run_folder import RunFolderLogger, to_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class CSVLogger(RunFolderLogger):
    """Writes `metrics.csv`: a row a call, a column a metric, `step` first; `hparams.json`, and of a
    Trainer `run.json`.

    A metric that comes later adds a column: the file is then written anew, whole or not at all. No
    file stays open between two writes.

    Args:
        save_dir: holds the experiments.
        name: of the experiment, a folder in `save_dir`.
        version: of this run; by default the next number that is free. One that is there already is
            continued: the rows of a `fit` take the place of those that are there from its first
            step on.
        flush_logs_every_n_steps: rows that are kept in memory before they are written,
        flush_interval_s: or seconds.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str = "core_logs",
        version: int | str | None = None,
        *,
        flush_logs_every_n_steps: int = 100,
        flush_interval_s: float = 10.0,
    ) -> None:
        if flush_logs_every_n_steps < 1:
            raise ConfigurationError(
                f"flush_logs_every_n_steps={flush_logs_every_n_steps}: expected a number of rows "
                "from 1."
            )
        super().__init__(save_dir, name, version)
        self._flush_every, self._flush_interval_s = flush_logs_every_n_steps, flush_interval_s
        self._saved_s = time.monotonic()
        self._rows: list[dict[str, object]] = []
        self._has_written = self._begins = False
        self._facts: dict[str, object] = {}

    @property
    def experiment(self) -> Any:
        """There is none: only the loggers of other libraries have one."""
        raise AttributeError(
            "A CSVLogger writes files by itself, and has no experiment of a library. The loggers "
            "'aim', 'comet', 'mlflow', 'tensorboard', 'trackio' and 'wandb' have one."
        )

    @property
    def metrics_path(self) -> Path:
        """The file."""
        return self.folder() / "metrics.csv"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row. A metric named `step` takes the place of the number of steps.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        self._rows.append(
            {"step": step, **{name: _to_cell(name, value) for name, value in metrics.items()}}
        )
        is_late = time.monotonic() - self._saved_s >= self._flush_interval_s
        if is_late or len(self._rows) >= self._flush_every:
            self.save()

    def log_run(self, facts: Mapping[str, Any]) -> None:
        """Record a Trainer's facts about the run for `run.json`: decisions with reasons, versions,
        machine, its end.
        """
        self._facts.update(facts)
        self._begins |= "began" in facts

    def save(self) -> None:
        """Write the rows that are in memory."""
        self._saved_s = time.monotonic()
        if not self._rows:
            return
        path = self.metrics_path
        with self.writing(), _locked(path.parent):
            self._write(path)
        self._rows, self._has_written = [], True
        self._save_facts()

    def finalize(self, status: str) -> None:
        """The run is over. One that has logged nothing leaves `run.json` where it has a folder, for
        its checkpoints.
        """
        self.save()
        super().finalize(status)
        if self._has_made or self._has_written:
            self._save_facts()

    def _save_facts(self) -> None:
        if self._facts:
            path = self.folder() / "run.json"
            facts: Any = None
            with contextlib.suppress(OSError, ValueError):
                facts = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(facts, dict):
                facts = {}
            facts.update(self._facts)
            with self.writing():
                path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            self._facts = {}

    def _write(self, path: Path) -> None:
        present = _read_columns(path)
        columns = list(dict.fromkeys([*present, *(name for row in self._rows for name in row)]))
        # Only more rows: they are appended. Otherwise the whole file is written beside it, and
        # takes its place at once.
        if columns == present and not self._begins:
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(_to_text(columns, self._rows))
            return
        earlier = _read_rows(path)
        if self._begins:
            first = self._rows[0]["step"]
            earlier = [row for row in earlier if not _is_from(first, row.get("step"))]
        self._begins = False
        temporary = path.with_name(f".{path.name}.partial")
        header = dict(zip(columns, columns, strict=True))
        temporary.write_text(
            _to_text(columns, [header, *earlier, *self._rows]), encoding="utf-8", newline=""
        )
        temporary.replace(path)


def _to_cell(name: str, value: object) -> float | int:
    number = to_scalar(name, value)
    if name == "epoch" and number.is_integer():  # which counts
        return int(number)
    return number


def _read_columns(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])
    return []


def _read_rows(path: Path) -> list[dict[str, object]]:
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
    return []


def _is_from(first: Any, step: Any) -> bool:
    """True if a row of the file is of the step `first`, or of a later one."""
    with contextlib.suppress(TypeError, ValueError):
        return float(step) >= float(first)
    return False


def _to_text(columns: list[str], rows: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore").writerows(
        rows
    )
    return text.getvalue()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time, should two runs have been given the same version."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # a process that was forked meanwhile has the folder open as well
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
