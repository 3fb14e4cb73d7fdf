"""The output of the commands: tables as plain text, whole words at any width, and nothing cut off.

A name that is too long for its column takes a line of its own, as an option does in the help of a
command; a table of a library would break it in the middle.

Much of what is printed isn't ours. So all of it goes through `say` or `say_json`, and what isn't
`Shown` is made printable first.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console


_GAP = "  "
_INDENT = "    "
_NARROWEST_TEXT = 24
_NARROWEST_NAME = 12


class Shown(str):
    """Text that a terminal may have as it is: its styles are ours, and what isn't ours was made
    printable.
    """

    __slots__ = ()


def shown(*parts: str) -> Shown:
    """The parts as one text for the terminal."""
    return Shown("".join(map(_shown, parts)))


def _shown(part: str) -> str:
    if isinstance(part, Shown):
        return part
    return printable(part)


def styled(text: str, **style: Any) -> Shown:
    """A text in a style of click."""
    return Shown(click.style(printable(text), **style))


def say(*parts: str, err: bool = False) -> None:
    """Print one line, on standard error if need be."""
    click.echo(shown(*parts), err=err)


def say_all(lines: Iterable[str], err: bool = False) -> None:
    """Print lines, on standard error if need be."""
    for line in lines:
        say(line, err=err)


def say_json(value: object) -> None:
    """Print JSON in ASCII. It escapes all control characters but one by itself."""
    click.echo(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def terminal_width() -> int:
    """`COLUMNS`, or that of the terminal; 80 where there is neither."""
    return max(20, shutil.get_terminal_size().columns)


def with_article(kind: str) -> str:
    """The name of a kind of plugin, as in "an accelerator"."""
    if kind[0] in "aeiou":
        return f"an {kind}"
    return f"a {kind}"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    width: int | None = None,
) -> Iterator[Shown]:
    """Lay rows out in columns.

    Args:
        headers: a title each column.
        rows: cells. The last one of a row may be a sentence, and is wrapped.
        notes: a sentence below each row; empty for none.
        width: in characters; that of the terminal by default.

    Yields:
        Lines, none wider than `width` unless a single word is.
    """
    width = width or terminal_width()
    notes = notes or [""] * len(rows)
    cells = [[shown(cell) for cell in row] for row in rows]
    lengths = [max(map(_length, column)) for column in zip(headers, *cells, strict=True)]
    widths = _column_widths(lengths, width)
    if widths is not None:
        yield from _row([styled(header, bold=True) for header in headers], widths)
    for row, note in zip(cells, notes, strict=True):
        if widths is not None:
            yield from _row(row, widths)
        else:
            yield row[0]
            yield from paragraph(Shown(_GAP.join(filter(None, row[1:]))), width, indent=_INDENT)
        yield from paragraph(note, width, indent=_INDENT)


def paragraph(text: str, width: int | None = None, indent: str = "") -> list[Shown]:
    """Wrap a text; the line breaks in it stay. Words that are too long stay whole."""
    width = width or terminal_width()
    if not isinstance(text, Shown):
        text = printable(text, keep="\n\t")
    return [
        Shown(line)
        for part in text.split("\n")
        for line in textwrap.wrap(
            part,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _length(cell: str) -> int:
    return len(click.unstyle(cell))


def _column_widths(lengths: Sequence[int], width: int) -> list[int] | None:
    """Width of each column, given that of its longest cell; None if they don't fit beside each
    other.
    """
    # Names stay whole beside a last column that is wrapped. Where that would be too narrow, the
    # first column gives way, and its long names take lines of their own.
    *names, text = lengths
    gaps = len(_GAP) * len(names)
    room = width - gaps - sum(names)
    if room >= min(text, _NARROWEST_TEXT):
        return [*names, min(text, room)]
    text = min(text, _NARROWEST_TEXT)
    first = width - gaps - sum(names[1:]) - text
    if first < _NARROWEST_NAME:
        return None
    return [first, *names[1:], text]


def _row(cells: Sequence[Shown], widths: Sequence[int]) -> Iterator[Shown]:
    *names, text = cells
    if _length(names[0]) > widths[0]:
        yield names[0]
        names[0] = Shown()
    lines: Sequence[str] = [text]
    if _length(text) > widths[-1]:
        lines = paragraph(text, widths[-1])
    padded = [
        name + " " * (width - _length(name)) for name, width in zip(names, widths, strict=False)
    ]
    left = _GAP.join([*padded, ""])
    for line in lines or [""]:
        yield Shown(f"{left}{line}".rstrip())
        left = " " * _length(left)


def size_text(number: float) -> str:
    """A number of bytes, such as `1.5 MiB`."""
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB"):
        number /= 1024
        if number < 1024:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} GiB"


@contextmanager
def working(what: str, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal what is being done and for how long, until it is done; elsewhere nothing.

    Args:
        what: such as `Verifying last.ckpt`.
        console: to draw on; None for standard error.

    Yields:
        A function that takes the bytes that are done and those of all, to be shown too.
    """
    if console is None and not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    started, position = time.monotonic(), [0, 0]

    def line() -> Text:
        done, total = position
        share = ""
        if total:
            share = f"  {done / total:.0%} of {size_text(total)}"
        return Text(
            f"{printable(what)}{share}  {time.monotonic() - started:.0f} s",
            overflow="ellipsis",
            no_wrap=True,
        )

    with Live(get_renderable=line, console=console or Console(stderr=True), transient=True):
        yield lambda done, total: position.__setitem__(slice(None), (done, total))
