"""By hand: asks the planner for each cell that was measured, and writes how far it is off to
errors.md beside this file.

    python benchmarks/plan_cells/errors.py [part of a cell's name ...] [--again] [-v]

Cells of DeepSpeed count with small buckets, since its own would hide the rest; those with its own
are in a table by themselves. Plans are kept in planned.json, by cell; `--again` makes those that
are named once more. Causes of the worst cells are written by hand into causes.json: by name of a
cell, or by the beginning of one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from design import SMALL_BUCKETS, VARIANTS, Cell, read
from models import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PLACE = Path(__file__).parent
PLANNED = PLACE / "planned.json"
PAGE = PLACE / "errors.md"
LIMITS, NUM_WORST = (0.9, 1.0, 1.1), 10
MIB = 2**20


class Result(NamedTuple):
    """The planned and the measured memory of one cell.

    Attributes:
        cell: its levels.
        planned, measured: peak bytes of the rank that has the most.
        sent_by_plan: bytes by operation in one optimizer step.
        sent: the same, of each rank.
    """

    cell: Cell
    planned: int
    measured: int
    sent_by_plan: dict[str, int]
    sent: list[dict[str, int]]

    @property
    def error(self) -> float:
        """How far the plan is off, as a share of what was measured; below zero where it is too
        low.
        """
        return self.planned / self.measured - 1

    @property
    def is_exact(self) -> bool:
        """True if the plan sends what one of the ranks has sent, operation by operation."""
        planned = {name: size for name, size in self.sent_by_plan.items() if size}
        return any(
            planned == {name: size for name, size in each.items() if size} for each in self.sent
        )

    def fits_falsely(self, share: float) -> bool:
        """True if the plan says that it fits into this share of what was measured, and it
        didn't.
        """
        limit = share * self.measured
        return self.planned <= limit < self.measured


def _make(model: str) -> Any:
    """The module of a cell. Called in a process of the planner's."""
    sys.path.insert(0, str(PLACE))
    torch.manual_seed(0)
    return MODELS[model]()


def _by_operation(sent: Mapping[str, int]) -> dict[str, int]:
    """Bytes by operation, of all axes."""
    found: dict[str, int] = {}
    for name, size in sent.items():
        operation = name.partition(" ")[0]
        found[operation] = found.get(operation, 0) + size
    return found


def _planned(cell: Cell, *, is_loud: bool) -> dict[str, Any]:
    from core_plan import plan

    started_s = time.monotonic()
    arguments: dict[str, Any] = dict(VARIANTS[cell.variant])
    try:
        (found,) = plan(
            partial(_make, cell.model), strategies=[cell.strategy], devices=cell.world, **arguments
        )
        peak = max(found.peak_bytes, found.setup_bytes)  # on a CPU, where all is one memory
        planned = {
            "peak_bytes": peak,
            "memory": dict(found.memory),
            "sent": _by_operation(found.sent),
        }
        if found.failure is not None:
            planned = {"failure": found.failure}
    except Exception as error:
        if is_loud:
            traceback.print_exc()
        planned = {"failure": f"{type(error).__name__}: {error}"[:600]}
    return {**planned, "seconds": round(time.monotonic() - started_s, 1)}


def _read(name: str) -> dict[str, Any]:
    path = PLACE / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _write(results: dict[str, Any]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
    PLANNED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _measured() -> dict[str, Any]:
    return _read("measured") | _read("measured_small_buckets")


def _cells() -> list[Cell]:
    """The 200 of the design, those of DeepSpeed with small buckets."""
    return [cell.with_small_buckets() for cell in read()]


def _own_buckets() -> list[Cell]:
    return [cell for cell in read() if cell.has_buckets]


def _short(name: str) -> str:
    return name.replace(f":{SMALL_BUCKETS}", "")


def _results(
    cells: Iterable[Cell], measured: dict[str, Any], planned: dict[str, Any]
) -> list[Result]:
    found = []
    for cell in cells:
        of_cell, of_plan = measured.get(cell.name, {}), planned.get(cell.name, {})
        if "ranks" in of_cell and "peak_bytes" in of_plan:
            sent = [
                {name: each["bytes"] for name, each in rank["sent"].items()}
                for rank in of_cell["ranks"]
            ]
            peak = max(rank["peak_bytes"] for rank in of_cell["ranks"])
            found.append(Result(cell, of_plan["peak_bytes"], peak, of_plan["sent"], sent))
    return found


# The page.


def _percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them doesn't exceed."""
    return sorted(values)[max(0, -int(-len(values) * share // 1) - 1)]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([_row(head), _row("---" for _ in head), *map(_row, rows)])


def _of_level(name: str, results: list[Result]) -> list[object]:
    sizes = [abs(each.error) for each in results]
    exact = sum(each.is_exact for each in results)
    worst = max(results, key=lambda each: abs(each.error))
    return [
        name,
        len(results),
        f"{median(sizes):.1%}",
        f"{_percentile(sizes, 0.9):.1%}",
        f"{worst.error:+.1%}",
        f"{exact} of {len(results)}",
    ]


def _by(factor: int, title: str, results: list[Result]) -> str:
    if not results:
        return "None is planned yet."
    levels = dict.fromkeys(each.cell[factor] for each in results)
    rows = [
        _of_level(
            f"`{_short(str(level))}`", [each for each in results if each.cell[factor] == level]
        )
        for level in sorted(levels, key=str)
    ]
    head = (title, "cells", "median error", "90th percentile", "largest", "bytes sent are exact")
    return _table(head, [_of_level("all", results), *rows])


def _cause(name: str, causes: dict[str, str]) -> str:
    return next((text for begin, text in causes.items() if name.startswith(begin)), "not known")


def _worst(results: list[Result], causes: dict[str, str]) -> str:
    if not results:
        return "None is planned yet."
    worst = sorted(results, key=lambda each: -abs(each.error))[:NUM_WORST]
    rows = [
        (
            _short(each.cell.name),
            f"{each.measured / MIB:.1f}",
            f"{each.planned / MIB:.1f}",
            f"{each.error:+.1%}",
            _cause(_short(each.cell.name), causes),
        )
        for each in worst
    ]
    return _table(("cell", "measured MiB", "planned MiB", "error", "cause"), rows)


def _fits(results: list[Result]) -> str:
    if not results:
        return "None is planned yet."
    rows = []
    for share in LIMITS:
        falsely = [each for each in results if each.fits_falsely(share)]
        refused = [
            each for each in results if each.planned > share * each.measured >= each.measured
        ]
        names = ", ".join(_short(each.cell.name) for each in falsely[:5]) or "none"
        rows.append(
            (share, f"{len(falsely)} ({len(falsely) / len(results):.1%})", len(refused), names)
        )
    return _table(
        (
            "memory, as a share of the peak",
            "said to fit, and didn't",
            "refused, and fitted",
            "which",
        ),
        rows,
    )


def _failures(measured: dict[str, Any], planned: dict[str, Any]) -> str:
    rows = []
    for cell in [*_cells(), *_own_buckets()]:
        if (error := measured.get(cell.name, {}).get("error")) is not None:
            rows.append((cell.name, "the run", error.replace("|", "\\|").replace("\n", " ")[:200]))
        elif (failure := planned.get(cell.name, {}).get("failure")) is not None:
            rows.append(
                (cell.name, "the plan", failure.replace("|", "\\|").replace("\n", " ")[:200])
            )
    return (
        _table(("cell", "failed", "reason"), rows)
        if rows
        else "Of no cell a run or a plan has failed."
    )


def _agreement(compared: dict[str, Any]) -> str:
    shares = sorted(
        rank["counted_bytes"] / rank["process_bytes"] - 1
        for found in compared.values()
        for rank in found.get("ranks", [])
    )
    return (
        f"Of {len(shares)} ranks the median is {median(shares):+.1%}, the largest {shares[0]:+.1%}."
    )


def _page(measured: dict[str, Any], planned: dict[str, Any]) -> str:
    results = _results(_cells(), measured, planned)
    with_own = _results(_own_buckets(), measured, planned)
    options = SMALL_BUCKETS.replace(",", "` and `")
    parts = [
        "# Errors of plans",
        "`core plan` beside real runs: the peak memory of the rank that has the most, and the "
        "bytes that ranks hand to collectives in one optimizer step. The cells were designed "
        "before the planner, and cover each pair of model, strategy, number of ranks and variant "
        "([design](design.py), [measurement](measure.py), "
        f"[program of this page](errors.py), run by hand on {date.today()} with torch "
        f"{torch.__version__}). Peaks are counted by a dispatch mode, on CPUs.",
        _by(1, "strategy", results),
        "## Does it fit?",
        _fits(results),
        "## The ten worst",
        _worst(results, _read("causes")),
        "## By ranks",
        _by(2, "ranks", results),
        "## DeepSpeed with its own buckets",
        f"Above, cells of DeepSpeed have `{options}`. Without these options a bucket takes 763 MiB "
        "in float32, whatever the model; most of the peak is then known beforehand.",
        _by(1, "strategy", with_own),
        "## What failed",
        _failures(measured, planned),
        "## What is counted, beside the memory of the process",
        "Some of these runs, with memory that goes back to the system when it is freed, beside the "
        "growth of the process's peak. A kernel's own buffers, and those of gloo, aren't counted.",
        _agreement(_read("agreement")),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    measured, planned = _measured(), _read("planned")
    for cell in [*_cells(), *_own_buckets()]:
        is_named = all(part in cell.name for part in asked.parts)
        if (
            not is_named
            or "ranks" not in measured.get(cell.name, {})
            or (cell.name in planned and not asked.again)
        ):
            continue
        found = planned[cell.name] = _planned(cell, is_loud=asked.v)
        _write(planned)
        results = _results([cell], measured, {cell.name: found})
        text = found.get("failure", "")[:200]
        if results:
            text = (
                f"{results[0].error:+.1%}, {'the same' if results[0].is_exact else 'other'} "
                "bytes sent"
            )
        print(f"{cell.name:60} {found['seconds']:5.1f} s  {text}", flush=True)
    PAGE.write_text(_page(measured, planned), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
