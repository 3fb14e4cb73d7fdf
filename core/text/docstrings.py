"""The beginning of a docstring, for a line of a listing."""

from __future__ import annotations


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph, on one line; empty without a docstring."""
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())
