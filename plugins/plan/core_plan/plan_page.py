"""Plans as a page: memory by kind for each strategy, beside what the device has, and the peak over
devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.cli import size_text
from core_plan.devices_chart import devices_chart
from core_plan.fits import device_bytes, offloaded, on_device
from core_plan.rehearsal.ledger import KINDS
from core_plan.table import caveats, change_text, fits_text, kinds_text, ranked, reason
from core_report.html_parts import page, table, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core_plan.fits import Assessment
    from core_plan.planner import MemoryPlan

_WIDTH, _HEIGHT = 1000, 24
_STYLE = """<style>
.planned { display: grid; gap: .2rem .8rem; margin: 1rem 0; }
.planned svg { height: 1.5rem; width: 100%; }
.planned p { margin: 0; overflow-wrap: anywhere; }
.limit { fill: none; stroke: currentColor; stroke-dasharray: 4 3; stroke-width: 2; vector-effect: non-scaling-stroke; }
.kinds { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
</style>"""  # noqa: E501


def render(
    title: str, assessments: Sequence[Assessment], curves: Mapping[str, Sequence[MemoryPlan]]
) -> str:
    """The page.

    Args:
        title: what was planned for.
        assessments: one for each strategy.
        curves: by strategy its plans over numbers of devices; empty leaves the chart out.
    """
    return page(f"Plan: {title}", _body(title, assessments, curves))


def _body(
    title: str, assessments: Sequence[Assessment], curves: Mapping[str, Sequence[MemoryPlan]]
) -> Iterator[str]:
    planned = ranked(assessments)
    limit_bytes = next((each.limit_bytes for each in planned), None)
    yield _STYLE
    yield f"<h1>{text(title)}</h1>"
    room = (
        "" if limit_bytes is None else f" A device has {size_text(limit_bytes)}: the dashed line."
    )
    yield (
        '<p class="quiet">The most memory that a rank holds at one moment of a training step, '
        f"by kind.{room}</p>"
    )
    if planned:
        yield from _bars(planned, limit_bytes)
    if curves:
        yield "<h2>Peak over devices</h2>"
        yield f'<div class="charts"><figure>{devices_chart(_points(curves), limit_bytes)}'
        yield f'<figcaption class="kinds">{_lines_legend(list(curves))}</figcaption></figure></div>'
    if planned:
        yield "<h2>What is sent and saved</h2>"
        yield from table(
            ["Strategy", "Sent a step", "By operation and axis", "Checkpoint a rank"],
            map(_row, planned),
        )
    refused = [each.plan for each in assessments if each.plan.failure is not None]
    if refused:
        yield "<h2>No plan</h2>"
        yield from table(
            ["Strategy", "Why"],
            ([f"<code>{text(one.strategy)}</code>", text(reason(one))] for one in refused),
        )


def _bars(planned: Sequence[Assessment], limit_bytes: int | None) -> Iterator[str]:
    """A bar for each strategy. All have one scale."""
    most = max([*(device_bytes(each.plan) for each in planned), limit_bytes or 0, 1]) * 1.02
    yield f'<p class="kinds">{"".join(_key(index, kind) for index, kind in enumerate(KINDS))}</p>'
    for each in planned:
        yield '<section class="planned">'
        peak = size_text(device_bytes(each.plan))
        yield f"<p><code>{text(each.plan.strategy)}</code> <b>{peak}</b> {_badge(each)}</p>"
        yield _bar(each.plan, limit_bytes, most)
        yield from (f"<p><small>{text(line)}</small></p>" for line in _lines_below(each))
        yield "</section>"


def _bar(plan: MemoryPlan, limit_bytes: int | None, most: float) -> str:
    parts, left, memory = [], 0.0, on_device(plan)
    for index, kind in enumerate(KINDS):
        width = _WIDTH * memory.get(kind, 0) / most
        title = f"<title>{kind} {size_text(memory.get(kind, 0))}</title>"
        parts.append(
            f'<rect class="c{index}" x="{left:.2f}" y="2" width="{width:.2f}" '
            f'height="{_HEIGHT - 4}">{title}</rect>'
        )
        left += width
    if limit_bytes is not None:
        at = _WIDTH * limit_bytes / most
        parts.append(f'<path class="limit" d="M{at:.2f} 0V{_HEIGHT}"/>')
    label = text(f"{plan.strategy}: {kinds_text(memory)}")
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
    return f'<svg {view} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _badge(assessment: Assessment) -> str:
    said = fits_text(assessment)
    if assessment.fits:
        kind = "finished"
    elif assessment.change:
        kind = "interrupted"
    else:
        kind = "failed"
    return f'<span class="badge {kind}">{text(said)}</span>' if said else ""


def _lines_below(assessment: Assessment) -> Iterator[str]:
    yield kinds_text(on_device(assessment.plan))
    if away := offloaded(assessment.plan):
        yield f"in the memory of the CPU: {kinds_text(away)}"
    if change := change_text(assessment):
        yield change
    yield from caveats(assessment.plan)


def _row(assessment: Assessment) -> list[str]:
    plan = assessment.plan
    sent = "<br>".join(text(f"{name} {size_text(size)}") for name, size in plan.sent.items())
    sizes = (size_text(sum(plan.sent.values())), size_text(plan.checkpoint_bytes))
    return [f"<code>{text(plan.strategy)}</code>", sizes[0], sent, sizes[1]]


def _points(curves: Mapping[str, Sequence[MemoryPlan]]) -> list[list[tuple[int, int]]]:
    return [
        [(each.devices * each.num_nodes, device_bytes(each)) for each in plans]
        for plans in curves.values()
    ]


def _lines_legend(names: Sequence[str]) -> str:
    return "".join(
        _key(index % 8, name, " again" * (index >= 8)) for index, name in enumerate(names)
    )


def _key(colour: int, name: str, more: str = "") -> str:
    return f'<span class="named"><span class="key c{colour}{more}"></span>{text(name)}</span>'
