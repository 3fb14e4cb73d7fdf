"""Hyperparameters as loggers take them, by the names of `lightning.fabric.utilities.logger`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from argparse import Namespace
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from torch import Tensor


def _convert_params(params: Mapping[str, Any] | Namespace | None) -> Mapping[str, Any]:
    """A dict of options; empty for None."""
    return vars(params) if isinstance(params, Namespace) else params or {}


def _flatten_dict(
    params: Mapping[Any, Any], delimiter: str = "/", parent_key: str = ""
) -> dict[str, Any]:
    """Nested options under names such as `model/width`."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{parent_key}{delimiter}{key}" if parent_key else str(key)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        elif isinstance(value, Namespace):
            value = vars(value)
        if isinstance(value, MutableMapping):
            flat |= _flatten_dict(value, delimiter, name)
        elif isinstance(value, list) and all(isinstance(item, MutableMapping) for item in value):
            for index, item in enumerate(value):
                flat |= _flatten_dict(item, delimiter, f"{name}/{index}")
        else:
            flat[name] = value
    return flat


def _sanitize_callable_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which a class or function is its name, or what it returns without arguments."""
    return {name: _plain_callable(value) for name, value in params.items()}


def _plain_callable(value: Any) -> Any:
    if inspect.isclass(value):
        return value.__name__
    if not callable(value):
        return value
    with contextlib.suppress(Exception):  # of the program's own
        returned = value()
        return value.__name__ if callable(returned) else returned
    return getattr(value, "__name__", None)


def _sanitize_params(params: dict[str, Any]) -> dict[str, Any]:
    """Options in which all but numbers, text and tensors is text. The dict itself is changed."""
    for name, value in params.items():
        plain = value.item() if isinstance(value, np.bool_ | np.integer | np.floating) else value
        params[name] = plain if type(plain) in (bool, int, float, str, Tensor) else str(plain)
    return params


def _convert_json_serializable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which what JSON can't say is text."""
    return {name: value if _is_json(value) else str(value) for name, value in params.items()}


def _is_json(value: Any) -> bool:
    if isinstance(value, list | dict):
        return True  # unlooked at, as under Lightning
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _add_prefix(metrics: Mapping[str, Any], prefix: str, separator: str) -> Mapping[str, Any]:
    """Metrics whose names begin with a prefix."""
    return (
        {f"{prefix}{separator}{name}": value for name, value in metrics.items()}
        if prefix
        else metrics
    )
