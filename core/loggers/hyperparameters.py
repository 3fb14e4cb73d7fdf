"""Nested options as one level of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"model": {"width": 8}}` as `{"model/width": 8}`; an empty mapping stays as it is."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}/")
        else:
            flat[path] = value
    return flat
