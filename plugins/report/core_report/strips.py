"""Bars of parts, a row each: names and numbers are text of the page, so that they can be read at
any width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core_report.chart import colour_class
from core_report.html_parts import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_WIDTH = 1000


class BarPart(NamedTuple):
    """A part of a bar.

    Attributes:
        kind: its classes in the style sheet.
        width: share of the whole bar.
        title: shown where the mouse is.
        opacity: of its colour.
    """

    kind: str
    width: float
    title: str
    opacity: float = 1.0


def strip(name: str, parts: Iterable[BarPart], note: str) -> str:
    """A row: name, bar and note.

    Args:
        name: as plain text.
        parts: beside each other, from the left.
        note: as plain text, at the right.
    """
    drawn, x = [], 0.0
    for part in parts:
        width = _WIDTH * part.width
        opacity = f' fill-opacity="{part.opacity:.2f}"' if part.opacity < 1 else ""
        drawn.append(
            f'<rect class="{part.kind}" x="{x:.1f}" y="0" width="{width:.1f}" height="10"{opacity}>'
            f"<title>{text(part.title)}</title></rect>"
        )
        x += width
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(name)}">'
    )
    return (
        f'<div class="strip"><span>{text(name)}</span>{picture}{"".join(drawn)}</svg>'
        f"<span>{text(note)}</span></div>"
    )


def legend(kinds: Mapping[str, int]) -> Iterator[str]:
    """The names of kinds, each with the number of its colour."""
    keys = (
        f'<span class="named"><span class="key {colour_class(number)}"></span>{text(kind)}</span>'
        for kind, number in kinds.items()
    )
    yield f'<div class="keys">{"".join(keys)}</div>'
