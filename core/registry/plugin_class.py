"""Classes of installed plugins, for `from core.strategies import SomeStrategy`: imported when they are asked for."""

from __future__ import annotations

from typing import Any


def plugin_class(kind: str, class_name: str, package: str) -> Any:
    """The class of an installed plugin, by its name.

    Args:
        kind: a key of `core.contract.KINDS`.
        class_name: as the plugin calls it.
        package: `__name__` of the package that was asked, for the message.

    Raises:
        ImportError: a well-known class, whose distribution is to be installed.
        AttributeError: no provider offers it.
    """
    # Python itself asks packages for submodules and dunder names; the installed plugins aren't looked at for those.
    if class_name[:1].isupper():
        from core.registry.registry import REGISTRIES

        return REGISTRIES[kind].class_named(class_name)
    raise AttributeError(f"module {package!r} has no attribute {class_name!r}")
