"""Operations that keep terms: made of the terms of all ranks, they make those of the result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core_parallel.following.marks import Mixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_parallel.following.marks import Mark

SUMS = ("sum", "count_nonzero")
LINEAR = re.compile(
    "alias|detach|clone|contiguous|_to_copy|lift_fresh|view|_unsafe_view|reshape|_reshape_alias|"
    "(un)?squeeze|permute|transpose|t|expand|select|slice|unbind|split|split_with_sizes|neg|"
    "positive|sum|stack|cat|nan_to_num"
)
"""Operations that make of sums of some values the sum of what they make of these."""


def keeps_terms(name: str, marks: Sequence[Mark]) -> bool:
    """True if an operation makes terms of a sum of those that it is given."""
    name = name.removesuffix("_")
    are_terms = [isinstance(one, Mixed) and one.is_term for one in marks]
    if name in ("mul", "div"):
        others = [one for one, is_term in zip(marks, are_terms, strict=True) if not is_term]
        return are_terms.count(True) == 1 and not any(others) and (name == "mul" or are_terms[0])
    if name in ("add", "sub"):
        return len(marks) > 1 and all(are_terms)
    return all(are_terms) and LINEAR.fullmatch(name) is not None
