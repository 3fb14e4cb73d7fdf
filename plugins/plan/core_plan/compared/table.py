"""A comparison on the terminal, and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from core import __version__
from core.cli import paragraph, size_text, styled, table
from core_plan.compared import numbers
from core_plan.compared.task import num_warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core_plan.compared.comparison import Comparison
    from core_plan.compared.figures import Result, Spread

HEADERS = ("strategy", "samples/s", "memory", "sent", "start-up", "checkpoint")


def lines(comparison: Comparison) -> Iterator[str]:
    """The table, a row a contender, with what became of its numbers below it."""
    results = comparison.results
    yield from table(
        HEADERS,
        [cells(result) for result in results],
        [note(comparison, result) for result in results],
    )
    yield from paragraph(conditions(comparison))
    if comparison.interrupted:
        yield styled("Interrupted: this is what there is.", fg="yellow")


def cells(result: Result) -> list[str]:
    """The figures of a contender as texts."""
    if result.status != "measured":
        return [result.strategy, result.status, "", "", "", ""]
    return [
        result.strategy,
        spread_text(result.samples_per_s),
        size_text(result.peak_memory_bytes) if result.peak_memory_bytes else "",
        "" if result.sent_bytes is None else size_text(sum(result.sent_bytes.values())),
        f"{result.startup_s.median:.1f} s" if result.startup_s else "",
        checkpoint_text(result),
    ]


def checkpoint_text(result: Result) -> str:
    """Seconds and size."""
    if result.checkpoint_s is None:
        return ""
    return f"{result.checkpoint_s:.1f} s {size_text(result.checkpoint_bytes or 0)}"


def spread_text(spread: Spread | None) -> str:
    """The median, with the quartiles."""
    if spread is None:
        return ""
    return f"{_short(spread.median)} ({_short(spread.low)} to {_short(spread.high)})"


def _short(rate: float) -> str:
    """Three digits that count."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def note(comparison: Comparison, result: Result) -> str:
    """The verdict on a contender's numbers, or why it has none, as sentences; may be empty."""
    reference = comparison.reference
    verdict = ""
    if result is reference and len(comparison.results) > 1:
        verdict = "the reference for the numbers"
    elif reference is not None:
        verdict = numbers.sentence(result.numbers, reference.strategy, result.has_dropout)
    steps = comparison.settings.steps
    is_short = result.status == "measured" and result.num_steps < steps
    short = f"the program has ended after {result.num_steps} of {steps} steps" if is_short else ""
    parts = [part[:1].upper() + part[1:] for part in (verdict, short) if part]
    return " ".join(
        part + "." * (not part.endswith(".")) for part in (*parts, result.reason) if part
    )


def conditions(comparison: Comparison) -> str:
    """The conditions of the comparison, and the meaning of its columns, as one paragraph."""
    settings = comparison.settings
    ranks = settings.devices * settings.num_nodes
    of = next((result.memory_of for result in comparison.results if result.memory_of), "process")
    warm_up = num_warm_up(settings.steps)
    rounds = max(result.rounds for result in comparison.results) or settings.rounds
    return (
        f"{ranks} process{'es' * (ranks != 1)}, {settings.steps} steps in each of {rounds} "
        f"round{'s' * (rounds != 1)}, the first {warm_up} of them as warm-up. Samples a second: "
        f"median and quartiles. Memory: the peak of a rank's {of}. Sent: what a rank hands to "
        "torch.distributed in a step. Start-up: from the launch to the end of the first step."
    )


def as_data(comparison: Comparison) -> dict[str, Any]:
    """All that is known, for `--json`."""
    reference = comparison.reference
    return {
        "core": __version__,
        "settings": asdict(comparison.settings),
        "interrupted": comparison.interrupted,
        "reference": None if reference is None else reference.strategy,
        "contenders": [
            {**asdict(result), "note": note(comparison, result)} for result in comparison.results
        ],
    }
