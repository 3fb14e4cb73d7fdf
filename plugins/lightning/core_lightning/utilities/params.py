"""Hyperparameters as loggers take them, by the names of `lightning.fabric.utilities.logger`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def _convert_params(params: Any) -> Any:
    """A dict of options; empty for None."""
    if isinstance(params, Namespace):
        return vars(params)
    return params or {}


def _flatten_dict(params: Any, delimiter: str = "/", parent_key: str = "") -> dict[str, Any]:
    """Nested options under names such as `model/width`."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = str(key)
        if parent_key:
            name = f"{parent_key}{delimiter}{key}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Namespace):
            value = vars(value)
        if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            flat |= _flatten_dict(value, delimiter, name)
        else:
            flat[name] = value
    return flat


def _sanitize_callable_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which a class or function is its name, or what it returns without arguments."""
    return {name: _plain_callable(value) for name, value in params.items()}


def _plain_callable(value: Any) -> Any:
    if not callable(value):
        return value
    if not inspect.isclass(value):
        with contextlib.suppress(Exception):  # of the program's own
            returned = value()
            if not callable(returned):
                return returned
    return getattr(value, "__name__", None)


def _sanitize_params(params: dict[str, Any]) -> dict[str, Any]:
    """Options in which all but numbers, text and tensors is text. The dict itself is changed."""
    for name, value in params.items():
        plain = value
        if isinstance(value, np.bool_ | np.integer | np.floating):
            plain = value.item()
        if type(plain) not in (bool, int, float, str, Tensor):
            plain = str(plain)
        params[name] = plain
    return params


def _convert_json_serializable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which what JSON can't say is text."""
    return {name: _plain_json(value) for name, value in params.items()}


def _plain_json(value: Any) -> Any:
    if isinstance(value, list | dict):
        return value  # unlooked at, as under Lightning
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _add_prefix(metrics: Mapping[str, Any], prefix: str, separator: str) -> Mapping[str, Any]:
    """Metrics whose names begin with a prefix."""
    if not prefix:
        return metrics
    return {f"{prefix}{separator}{name}": value for name, value in metrics.items()}
