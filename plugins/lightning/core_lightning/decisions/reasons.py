"""Differences from Lightning on purpose, each with its reason, from `differences.toml` and
`missing.txt`.
"""

from __future__ import annotations

import fnmatch
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _config() -> dict[str, Any]:
    return tomllib.loads(_read("differences.toml"))


@cache
def _missing() -> dict[str, str]:
    """For each member that differs, as `Class.name`, its line."""
    lines = [
        line for line in _read("missing.txt").splitlines() if "(" not in line and ":" not in line
    ]
    return {".".join(line.removesuffix(" = ...").split(".")[-2:]): line for line in lines}


def missing(cls: type, name: str) -> str | None:
    """The line of a member that Lightning's class has and this one hasn't; None if there is
    none.
    """
    found = (_missing().get(f"{each.__name__}.{name}") for each in cls.__mro__)
    return None if hasattr(cls, name) else next((line for line in found if line is not None), None)


def _decision(line: str) -> dict[str, Any]:
    decisions = _config()["decision"]
    return next(
        each
        for each in decisions
        if any(fnmatch.fnmatchcase(line, pattern) for pattern in each["what"])
    )


def reason(line: str) -> str:
    """The decision that a difference falls to."""
    each = _decision(line)
    return f"{each['here']}, since {each['why']}"


def is_called(line: str) -> bool:
    """True if an override of this member is called all the same."""
    return bool(_decision(line).get("is_called", False))


def behaviours(uses: Container[str]) -> list[tuple[str, str]]:
    """Differences of meaning in a program with such uses: the first use, and a sentence."""
    return [
        (each["uses"][0], f"{each['lightning']}; here {each['here']}, since {each['why']}")
        for each in _config()["behaviour"]
        if each["uses"] and all(use in uses for use in each["uses"])
    ]
