"""Nested options as one level of names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any


def flatten_names(params: Mapping[str, Any] | Namespace, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: `{"model": {"width": 8}}` becomes `{"model/width": 8}`. An empty mapping stays."""
    params = vars(params) if isinstance(params, Namespace) else params
    flat: dict[str, Any] = {}
    for name, value in params.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping | Namespace) and (value if isinstance(value, Mapping) else vars(value)):
            flat |= flatten_names(value, f"{path}/")
        else:
            flat[path] = value
    return flat
