"""Questions about a model and its weights: overridden hooks, shared parameters, torchvision's
models.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from torch import nn

from core import Callback, DataModule, Module
from core_lightning.utilities.imports import _TORCHVISION_AVAILABLE


def is_overridden(
    method_name: str, instance: object | None = None, parent: type[object] | None = None
) -> bool:
    """True if an object has a method of its own in the place of the one that `parent` has.

    The parent of modules, data modules and callbacks is by default the base class of their kind.
    None has no methods.
    """
    if instance is None:
        return False
    for kind in (Module, DataModule, Callback):
        if parent is None and isinstance(instance, kind):
            parent = kind
    if parent is None:
        raise ValueError(
            f"is_overridden({method_name!r}, {type(instance).__name__}): expected a parent."
        )
    base = getattr(parent, method_name, None)
    if base is None:
        if parent is Module:  # hooks that a module may have, and that its base class hasn't
            return hasattr(instance, method_name)
        raise ValueError(f"{parent.__name__} has no method {method_name!r}.")
    own = getattr(instance, method_name, None)
    return own is not None and _function(own) is not _function(base)


def _function(method: Any) -> Any:
    while isinstance(method, functools.partial):
        method = method.func
    method = getattr(method, "__func__", method)
    return getattr(method, "__wrapped__", method)


def get_torchvision_model(model_name: str, **kwargs: Any) -> nn.Module:
    """A model of torchvision's, by its name."""
    if not _TORCHVISION_AVAILABLE:
        raise ModuleNotFoundError(str(_TORCHVISION_AVAILABLE))
    return import_module("torchvision.models").get_model(model_name, **kwargs)  # type: ignore[no-any-return]


def find_shared_parameters(module: nn.Module) -> list[list[str]]:
    """The names of parameters that are one tensor under several names, a list for each."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def set_shared_parameters(module: nn.Module, shared_params: list[list[str]]) -> nn.Module:
    """Make the parameters of each list the one that its first name has."""
    for first, *others in shared_params:
        shared = functools.reduce(getattr, first.split("."), module)
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, shared)
    return module
