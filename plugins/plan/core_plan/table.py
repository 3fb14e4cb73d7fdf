"""Plans in the terminal, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.cli import paragraph, say, size_text, styled, table
from core_plan.fits import device_bytes, offloaded, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core_plan.fits import Assessment
    from core_plan.planner import MemoryPlan

_SOURCES = {
    "run": "measured by a run with as many ranks on this machine's CPU",
    "extrapolated": "extrapolated from runs with 1 and 2 ranks on this machine's CPU",
}
"""The notes on plans that are no rehearsals."""


def print_assessments(assessments: Sequence[Assessment], *, verbose: bool = False) -> None:
    """Print a row each: what fits first, then by the peak; those that have no plan at the end, with
    the reason.
    """
    planned = ranked(assessments)
    if planned:
        headers = ["Strategy", "Peak", "Sent a step", "Checkpoint"]
        if planned[0].limit_bytes is not None:
            headers.append("Fits")
        for line in table(
            headers, [_cells(each) for each in planned], [_note(each, verbose) for each in planned]
        ):
            say(line)
    refused = [each.plan for each in assessments if each.plan.failure is not None]
    if refused and planned:
        say()
    for plan in refused:
        say(styled(plan.strategy, bold=True), "  ", styled("no plan", fg="yellow"))
        for line in paragraph(reason(plan), indent="    "):
            say(line)


def ranked(assessments: Sequence[Assessment]) -> list[Assessment]:
    """Those that have a plan: what fits, what fits with a change, what doesn't; each by the
    peak.
    """
    planned = [each for each in assessments if each.plan.failure is None]
    return sorted(
        planned, key=lambda each: (not each.fits, each.change is None, device_bytes(each.plan))
    )


def reason(plan: MemoryPlan) -> str:
    """Why there is no plan, in a line."""
    return next(iter((plan.failure or "").strip().splitlines()), "")


def kinds_text(memory: Mapping[str, int]) -> str:
    """Kinds of memory with their sizes, the largest first."""
    parts = sorted(memory.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {size_text(size)}" for kind, size in parts if size)


def fits_text(assessment: Assessment) -> str:
    """Fits or not, and by how much; empty without a limit."""
    if assessment.spare_bytes is None:
        return ""
    size = size_text(abs(assessment.spare_bytes))
    return f"yes, {size} left" if assessment.fits else f"no, {size} too much"


def change_text(assessment: Assessment) -> str:
    """The change that makes it fit, in a sentence; empty where nothing has to."""
    if assessment.change is not None and assessment.changed is not None:
        return f"fits with {assessment.change.what}: {size_text(device_bytes(assessment.changed))}"
    return (
        f"none of {assessment.num_tried} changes alone makes it fit"
        if assessment.fits is False
        else ""
    )


def caveats(plan: MemoryPlan) -> Iterator[str]:
    """The basis of the numbers other than a rehearsal: runs and why, or values that nobody has."""
    if plan.source in _SOURCES:
        yield ". ".join([_SOURCES[plan.source], *plan.assumed])
    else:
        yield from (f"assumed: {each}" for each in plan.assumed)


def as_json(assessment: Assessment) -> dict[str, Any]:
    """A plan with all of its numbers."""
    plan, found = assessment.plan, _plan_as_json(assessment.plan)
    if plan.failure is None and assessment.limit_bytes is not None:
        changed = None
        if assessment.change is not None and assessment.changed is not None:
            changed = {"what": assessment.change.what, "plan": _plan_as_json(assessment.changed)}
        found |= {"fits": assessment.fits, "spare_bytes": assessment.spare_bytes, "change": changed}
    return found


def _plan_as_json(plan: MemoryPlan) -> dict[str, Any]:
    place = {"strategy": plan.strategy, "devices": plan.devices, "num_nodes": plan.num_nodes}
    if plan.failure is not None:
        return {**place, "failure": plan.failure}
    return {
        **place,
        "peak_bytes": device_bytes(plan),
        "memory": on_device(plan),
        "setup_bytes": plan.setup_bytes,
        "offloaded_to_cpu": offloaded(plan),
        "sent": dict(plan.sent),
        "checkpoint_bytes": plan.checkpoint_bytes,
        "source": plan.source,
        "assumed": list(plan.assumed),
        "failure": None,
    }


def _cells(assessment: Assessment) -> list[str]:
    plan = assessment.plan
    sizes = [device_bytes(plan), sum(plan.sent.values()), plan.checkpoint_bytes]
    cells = [plan.strategy, *map(size_text, sizes)]
    if assessment.fits is None:
        return cells
    if assessment.fits:
        color = "green"
    elif assessment.change:
        color = "yellow"
    else:
        color = "red"
    return [*cells, styled(fits_text(assessment), fg=color)]


def _note(assessment: Assessment, verbose: bool) -> str:
    return "\n".join(_note_lines(assessment, verbose))


def _note_lines(assessment: Assessment, verbose: bool) -> Iterator[str]:
    plan = assessment.plan
    yield kinds_text(on_device(plan))
    if away := offloaded(plan):
        yield f"in the memory of the CPU: {kinds_text(away)}"
    if change := change_text(assessment):
        yield change
    if verbose and plan.sent:
        yield "sent: " + ", ".join(f"{name} {size_text(size)}" for name, size in plan.sent.items())
    lines = list(caveats(plan))
    yield from (
        lines if verbose or len(lines) < 2 else [f"{lines[0]}; {len(lines) - 1} more with -v"]
    )
