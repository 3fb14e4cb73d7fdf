"""The near miss that an error message offers for a misspelt name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def near_names(
    name: str, choices: Iterable[str], *, count: int = 3, cutoff: float = 0.6
) -> list[str]:
    """The choices that look like `name`, the nearest first.

    Args:
        name: as it was written.
        choices: what it may have meant, in any order.
        count: the most to return.
        cutoff: the least likeness, from 0 to 1, as `difflib.get_close_matches` measures it.
    """
    # here, since it takes as long to import as a listing takes in all
    from difflib import get_close_matches

    return get_close_matches(name, sorted(choices), n=count, cutoff=cutoff)


def did_you_mean(name: str, choices: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> str:
    """The sentence `" Did you mean 'ddp'?"`, to append to an error; empty if nothing is near. As
    `near_names`.
    """
    near = near_names(name, choices, count=count, cutoff=cutoff)
    if not near:
        return ""
    return f" Did you mean {' or '.join(map(repr, near))}?"
