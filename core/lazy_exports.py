"""Lazy exports: the public names of a package, imported when they are first used."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

__all__ = ["import_home", "lazy_exports"]


def lazy_exports(
    package: str,
    *,
    kind: str | None = None,
    modules: Iterable[str] = (),
    open_to_plugins: bool = False,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, called in it below its `__all__`.

    The names of `__all__` that aren't there yet are imported from where the package's block
    `if TYPE_CHECKING:` has them, which type checkers read too.

    Args:
        package: its `__name__`.
        kind: of the plugins whose classes the package exports too, if they are installed; a key of
            `core.contract.KINDS`.
        modules: public ones of the package, imported when they are first used as its attributes.
        open_to_plugins: whether installed packages can add names (entry-point group
            `core.exports`).
    """
    if not hasattr(sys.modules["core"], "_MODULES"):
        from core.namesakes import overwritten

        raise overwritten()
    own_modules = frozenset(modules)
    public = frozenset(sys.modules[package].__all__)

    def get(name: str) -> Any:
        if name in public:
            homes = _homes(package)
            home = homes.get(name) or homes["*"]
            value = getattr(import_home(home, f"{package}.{name}"), name)
            # the next time, Python finds it without asking
            setattr(sys.modules[package], name, value)
            return value
        if name in own_modules:
            return importlib.import_module(f".{name}", package)
        # Python itself asks packages for submodules and dunder names: the installed plugins aren't
        # searched for those. Not kept: what is installed and registered may be another class the
        # next time.
        if kind is not None and name[:1].isupper():
            from core.registry.registry import REGISTRIES

            return REGISTRIES[kind].class_named(name)
        if open_to_plugins and not name.startswith("_"):
            from core.registry.named_functions import load_export

            return load_export(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(public | own_modules)


def import_home(home: str, name: str) -> ModuleType:
    """The module that has the public name.

    Raises:
        ImportError: it is another distribution's, which isn't installed.
    """
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as cause:
        package = home.partition(".")[0]
        if cause.name != package or package == "core":
            raise
        from core.registry.known_plugins import missing

        distribution = package.replace("_", "-")
        message = f"{name} comes with {distribution}. {missing(distribution)}"
        raise ImportError(message, name=package) from None


@functools.cache
def _homes(package: str) -> dict[str, str]:
    """The module from which the package's block imports each name; `"*"` for all others."""
    file = Path(str(sys.modules[package].__file__))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
