"""What stands behind `from core.strategies import SomeStrategy`: plugin classes, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def lazy_export(name: str, *, kind: str, package: str, modules: Mapping[str, str]) -> Any:
    """An attribute of `core.accelerators` or one of its siblings; for their `__getattr__`.

    Args:
        name: of the attribute.
        kind: what the package holds, a key of `core.contract.KINDS`.
        package: its `__name__`.
        modules: by name of a built-in, the module that has it.

    Raises:
        ImportError: a well-known class, whose distribution is to be installed.
        AttributeError: nobody offers it.
    """
    if name in modules:
        return getattr(importlib.import_module(modules[name]), name)
    return plugin_class(kind, name, package)


def plugin_class(kind: str, class_name: str, package: str) -> Any:
    """The class of an installed plugin, by its name.

    Args:
        kind: a key of `core.contract.KINDS`.
        class_name: as the plugin calls it.
        package: `__name__` of the package that was asked, for the message.

    Raises:
        ImportError: a well-known class, whose distribution is to be installed.
        AttributeError: nobody offers it.
    """
    # Python itself asks packages for submodules and dunder names; the installed plugins aren't looked at for those.
    if class_name[:1].isupper():
        from core.registry.registry import REGISTRIES

        return REGISTRIES[kind].class_named(class_name)
    raise AttributeError(f"module {package!r} has no attribute {class_name!r}")
