"""Doors: packages whose public names are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["checkpoint_reader", "door"]


def door(
    package: str, names: Mapping[str, Iterable[str]], *, kind: str | None = None, modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package. Type checkers see its `__all__`, and imports that only they run.

    Args:
        package: its `__name__`.
        names: by module the names that it has; a module of the package begins with a dot.
        kind: what the package holds, a key of `core.contract.KINDS`: it hands out the classes of installed plugins too.
        modules: public ones of the package, imported when they are first used as its attributes.
    """
    own_modules = frozenset(modules)
    homes = {name: module for module, held in names.items() for name in held}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name], package), name)
            setattr(sys.modules[package], name, value)  # the next time, Python finds it without asking
            return value
        if name in own_modules:
            return importlib.import_module(f".{name}", package)
        from core.registry.known_imports import IMPORTS

        if (answer := IMPORTS.get(package, {}).get(name)) is not None:
            text = f"{package} has no {name}. {answer} See docs/coming-from-lightning.md."
            if _is_asked_by_import(package):
                # An AttributeError would be replaced by Python's own ImportError, without the answer.
                raise ImportError(text, name=package)
            raise AttributeError(text)
        if kind is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Not kept: what is installed and registered may be another class the next time.
        from core.registry.plugin_class import plugin_class

        return plugin_class(kind, name, package)

    return get, lambda: sorted({*sys.modules[package].__all__, *own_modules})


def checkpoint_reader(head: bytes, path: str) -> Any:
    """The reader of an installed package for a file that isn't the core's own; see `core.registry`."""
    from core.registry.checkpoint_readers import reader_of

    return reader_of(head, path)


def _is_asked_by_import(package: str) -> bool:
    """True if `__getattr__` is asked by an import, and not by `getattr` or `hasattr`; of a mere module, always."""
    asks = sys._getframe(2).f_globals.get("__name__")
    return not hasattr(sys.modules[package], "__path__") or asks in ("importlib._bootstrap", "_frozen_importlib")
