"""The classes behind the names of a program, and the attributes of their objects, as far as they
are known without running it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from core import Callback
from core_lightning.names.modules import MODULES
from core_lightning.strategies.strategy_names import named
from core_lightning.trainer.trainer import Trainer


class Kind(NamedTuple):
    """The class of an object: core-lightning's, and the program's own that is derived from it, if
    any.
    """

    cls: Any
    own: ast.ClassDef | None = None


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_bytes(), str(path))


def is_stored(node: ast.AST) -> bool:
    """True if an attribute is assigned there."""
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def name_of(node: ast.AST | None) -> str:
    """The last part of a node's name; empty without one."""
    names = [getattr(node, field, None) for field in ("id", "attr", "name")]
    return next(filter(None, names), "")


def known_part(name: str) -> str:
    """The name as far as it is a module's own: what follows are attributes of a class."""
    known = ""
    for part in name.split("."):
        known = f"{known}.{part}".lstrip(".")
        if known not in MODULES:
            break
    return known


def is_there(name: str) -> bool:
    """True if there is such a module, or such a name in one."""
    module, _, attribute = name.rpartition(".")
    return name in MODULES or attribute in MODULES.get(module, {}) or attribute.startswith("__")


@cache
def class_named(name: str) -> Any:
    """Our class of that name of Lightning's; None if it is none."""
    module, _, attribute = name.rpartition(".")
    target = MODULES.get(module, {}).get(attribute)
    if target is None:
        return None
    place, _, own = target.partition(":")
    found = getattr(import_module(place), own, None)
    return found if inspect.isclass(found) else None


@cache
def kind_of_attribute(cls: Any, name: str) -> Kind | None:
    """The kind of object that an attribute of a class's objects is; None if nobody knows."""
    if name == "trainer" and issubclass(cls, nn.Module | Callback):
        return Kind(Trainer)
    if name == "strategy" and issubclass(cls, Trainer):
        return Kind(named(import_module("core.strategies").SingleDeviceStrategy))
    static = inspect.getattr_static(cls, name, None)
    found = getattr(static, "fget", None)  # of a property
    if inspect.isfunction(found):
        annotation: Any = found.__annotations__.get("return")
        found = found.__globals__.get(annotation, annotation)
    if inspect.isclass(found) and found.__module__.startswith("core_lightning"):
        return Kind(found)
    return None


@cache
def members(cls: Any) -> frozenset[str]:
    """The names that objects of a class have, also those that its methods assign."""
    found = {*dir(cls)}
    for each in cls.__mro__:
        found |= getattr(each, "__annotations__", {}).keys()
        if each.__module__.startswith("core"):
            found |= _assigned(each.__module__).get(each.__name__, set())
    return frozenset(found)


@cache
def _assigned(module: str) -> dict[str, set[str]]:
    """For each class of a module the names that are assigned within it."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        return {}
    return {
        each.name: {name_of(node) for node in ast.walk(each) if is_stored(node)}
        for each in ast.walk(parsed(Path(path)))
        if isinstance(each, ast.ClassDef)
    }
