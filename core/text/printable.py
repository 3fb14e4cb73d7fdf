"""Text that isn't ours, such as the name of a package or of a checkpoint's section, made fit for a
terminal.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    r"""Escape what isn't printed, as `repr` does: control characters, C1 too, marks of direction,
    what has no width.

    Args:
        text: of which `"\x1b[2K"` becomes `"\\x1b[2K"`; doing it twice changes nothing.
        keep: characters that stay, such as `"\n"` in a text of several lines.
    """
    if text.isprintable():
        return text
    odd = {char for char in text if not char.isprintable() and char not in keep}
    return text.translate({ord(char): char.encode("unicode_escape").decode() for char in odd})


def shortened(text: str, max_chars: int) -> str:
    """The text, or its beginning and its end with " ... " between them where it is longer than it
    may be.
    """
    if len(text) <= max_chars:
        return text
    half = (max_chars - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
