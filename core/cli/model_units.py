"""The row of `core explain --model` about a model's units. Loads torch and the user's module."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

import torch
from torch import nn

from core.contract import ConfigurationError
from core.registry.discovery import describe
from core.resolve import Decision
from core.strategies import find_units


def decide_units(target: str) -> Decision:
    """Make the model that `"module:name"` names, without memory for its parameters, and find its units.

    Args:
        target: of a model, or of a class or function that makes one without arguments. Modules in the current folder
            are found, too.

    Raises:
        ConfigurationError: it names no model, or can't be imported or made.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(f"--model {target}: expected MODULE:NAME, such as train:build_model.")
    sys.path.insert(0, os.getcwd())
    try:
        with torch.device("meta"):
            found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module_name))
            model = found if isinstance(found, nn.Module) else found()
            configure: Any = getattr(model, "configure_model", lambda: None)
            configure()
    except Exception as cause:
        raise ConfigurationError(f"--model {target} can't be made: {describe(cause)}") from cause
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"--model {target}: expected a torch.nn.Module, got {type(model).__name__}.")
    units = find_units(model)
    return Decision("units", units.summary, units.reason)
