"""The contents of a run's folder: metrics, options, decisions, checkpoints. Everything in it may be
damaged.
"""

from __future__ import annotations

import csv
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import CoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.checkpoint.building_blocks import Manifest

Series = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint of the run.

    Attributes:
        path: within the run's folder.
        size_bytes: of all its files.
        files: size and digest by name; a checkpoint of one file has one, whose digest may be empty.
        manifest: of a folder; None for a file.
        damage: why it can't be read; empty if it can.
    """

    path: str
    size_bytes: int
    files: Mapping[str, tuple[int, str]]
    manifest: Manifest | None = None
    damage: str = ""


_WRITTEN = ("metrics.csv", "run.json")
"""Files that the CSVLogger leaves of a run: one of them at least."""
_NUMBERS = re.compile("([0-9]+)")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The folder of a run.

    Attributes:
        folder: its path.
        metrics: by name, steps and values; those that aren't finite too, in metrics that ever were.
        left_out: sentences about values that are in the file and not in `metrics`.
        hparams: from `hparams.json`.
        facts: from `run.json`: decisions, versions, machine and time.
        timeline: from `timeline.json`, which a callback may have left.
        ranks: likewise from `ranks.json`.
        checkpoints: by name.
        changed_at_s: seconds since 1970 at which a file of the logger was written last.
    """

    folder: Path
    metrics: Mapping[str, Series]
    left_out: Sequence[str]
    hparams: Mapping[str, Any]
    facts: Mapping[str, Any]
    timeline: Mapping[str, Any]
    ranks: Mapping[str, Any]
    checkpoints: list[CheckpointRecord]
    changed_at_s: float

    @property
    def experiment(self) -> str:
        """Name of the folder that holds the runs."""
        return self.folder.resolve().parent.name

    @property
    def name(self) -> str:
        """Such as `core_logs/version_3`."""
        return f"{self.experiment}/{self.folder.resolve().name}"


def find_runs(folder: Path) -> list[Path]:
    """The folder if it is that of a run; else those of all runs in it, by name and number.

    Raises:
        CoreError: there is none.
    """
    if any((folder / name).is_file() for name in _WRITTEN):
        return [folder]
    found = {path.parent for name in _WRITTEN for path in folder.glob(f"**/{name}")}
    if not found:
        raise CoreError(
            f"{folder} is not the folder of a run, and there is none in it: expected metrics.csv "
            "or run.json, as the CSVLogger writes them, which is the default. Files of TensorBoard "
            'aren\'t read: a run with logger=["csv", "tensorboard"] leaves both.'
        )
    return sorted(found, key=_in_order)


def _in_order(path: Path) -> list[str | int]:
    """Numbers in a path count as numbers: version_2 before version_10."""
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(str(path))]


def read_run(folder: Path) -> RunRecord:
    """Read what there is in a folder of `find_runs`.

    Raises:
        CoreError: its metrics are damaged.
    """
    times = [path.stat().st_mtime for name in _WRITTEN if (path := folder / name).is_file()]
    found, unread = _read_metrics(folder / "metrics.csv")
    finite = {
        name: series
        for name, series in found.items()
        if any(math.isfinite(value) for _, value in series)
    }
    return RunRecord(
        folder=folder,
        metrics=finite,
        left_out=[
            _never_finite(name, series) for name, series in found.items() if name not in finite
        ]
        + unread,
        hparams=_read_object(folder / "hparams.json"),
        facts=_read_object(folder / "run.json"),
        timeline=_read_object(folder / "timeline.json"),
        ranks=_read_object(folder / "ranks.json"),
        checkpoints=_find_checkpoints(folder),
        changed_at_s=max(times),
    )


def _read_metrics(path: Path) -> tuple[dict[str, Series], list[str]]:
    """The metrics, and a sentence if the file has something that is no number."""
    found: dict[str, Series] = {}
    strange: list[str] = []
    for number, row in enumerate(_read_rows(path)):
        step = _number(row.get("step"))
        for name, text in row.items():
            value = _number(text)
            if name and name != "step" and value is not None:
                found.setdefault(name, []).append((float(number) if step is None else step, value))
            elif text and value is None:
                strange.append(
                    f"line {number + 2}, {text if isinstance(text, str) else ', '.join(text)!r:.60}"
                )
    if not strange:
        return found, []
    return found, [
        f"{path.name} has values that are no numbers, which were left out: {len(strange)}. First: "
        f"{strange[0]}."
    ]


def _never_finite(name: str, series: Series) -> str:
    return (
        f"{name} was never finite. Number of values: {len(series)}, the last one {series[-1][1]}."
    )


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():  # a run of fewer steps than are logged at once
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            yield from csv.DictReader(file)
        except csv.Error as error:
            raise CoreError(f"{path} is damaged: {error}.") from error


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _read_object(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _find_checkpoints(folder: Path) -> list[CheckpointRecord]:
    from core.checkpoint.building_blocks import FILE_SUFFIXES, MANIFEST_NAME, digests_of_file

    found = []
    for path in sorted(folder.glob("**/*")):
        name = str(path.relative_to(folder))
        if (path / MANIFEST_NAME).is_file():
            found.append(_of_folder(name, path))
        elif path.is_file() and path.name.endswith(FILE_SUFFIXES):
            with suppress(OSError, ValueError):
                size, digests = path.stat().st_size, ", ".join(digests_of_file(path))
                found.append(CheckpointRecord(name, size, {path.name: (size, digests)}))
    return found


def _of_folder(name: str, path: Path) -> CheckpointRecord:
    from core.checkpoint.building_blocks import MANIFEST_NAME, parse_manifest

    try:
        found = parse_manifest((path / MANIFEST_NAME).read_bytes(), str(path))
    except (OSError, CoreError) as error:
        return CheckpointRecord(name, 0, {}, damage=str(error))
    files = {file: (entry.size_bytes, entry.digest) for file, entry in found.files.items()}
    return CheckpointRecord(name, sum(size for size, _ in files.values()), files, found)
